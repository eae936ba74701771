// What runs fencepost's hook program in OpenCode; one generated file an incarnation, which begins with SETTINGS.
//
// A tool call runs only if the program has said so: it has ended with status 0, in time, and has printed nothing.
// OpenCode itself has no deadline for a plugin, so the one that is kept here ends a program that hangs.
//
// What tells a call's prompt comes as events, each before the call that it is about (docs/harnesses.md).

import { spawn } from "node:child_process"
import { randomUUID } from "node:crypto"

const REMEMBERED_MAX = 4096

const remember = (map, key, value) => {
  map.delete(key)
  map.set(key, value)
  if (map.size > REMEMBERED_MAX) map.delete(map.keys().next().value)
}

// What the hook program prints about an event.  Rejects if it cannot be started, fails or is late.
const ask = (event) =>
  new Promise((resolve, reject) => {
    const [program, ...options] = SETTINGS.commands[event.hook_event_name]
    const said = []
    const child = spawn(program, options, { stdio: ["pipe", "pipe", "ignore"] })
    const late = setTimeout(() => {
      child.kill("SIGKILL")
      reject(new Error("the hook program is late"))
    }, SETTINGS.timeout_seconds * 1000)
    child.on("error", (error) => {
      clearTimeout(late)
      reject(error)
    })
    child.stdin.on("error", () => {}) // it may end without reading all; its status tells
    child.stdout.on("data", (part) => said.push(part))
    child.on("close", (status) => {
      clearTimeout(late)
      if (status === 0) resolve(Buffer.concat(said).toString("utf8"))
      else reject(new Error(`the hook program ended with ${status}`))
    })
    child.stdin.end(JSON.stringify(event))
  })

// Why a call must not run, or null: it may.
const decide = async (event) => {
  try {
    const said = await ask(event)
    if (said === "") return null
    const { permissionDecision, permissionDecisionReason } = JSON.parse(said).hookSpecificOutput
    if (permissionDecision === "deny" && typeof permissionDecisionReason === "string" && permissionDecisionReason)
      return permissionDecisionReason
  } catch {}
  return SETTINGS.denial
}

const Fencepost = async ({ client }) => {
  const messages = new Map() // by session and call, the latest message that the call is a part of
  const prompts = new Map() // by message of the model's, the prompt that it follows from
  const answered = new Map() // by prompt that the model has answered, true
  const nested = new Map() // by session, whether an agent began it
  let reports = Promise.resolve() // one after the other, and all of them before the next call is asked about

  const isNested = async (sessionID) => {
    if (nested.has(sessionID)) return nested.get(sessionID)
    const session = (await client.session.get({ path: { id: sessionID } })).data
    if (!session) return true // whose it is cannot be told, so it has no echo
    remember(nested, sessionID, Boolean(session.parentID))
    return Boolean(session.parentID)
  }

  const of = async (kind, sessionID, more) => {
    const isAgents = await isNested(sessionID).catch(() => true)
    return { hook_event_name: kind, session_id: sessionID, ...(isAgents ? { agent_id: sessionID } : {}), ...more }
  }

  const report = (kind, sessionID, more) => {
    reports = reports.then(async () => ask(await of(kind, sessionID, more))).catch(() => {})
    return reports
  }

  const heard = ({ type, properties }) => {
    if (type === "message.part.updated" && properties.part.type === "tool") {
      const { sessionID, callID, messageID } = properties.part
      remember(messages, `${sessionID} ${callID}`, messageID)
    } else if (type === "message.updated" && properties.info.role === "assistant") {
      const { id, sessionID, parentID, finish, time, error, summary } = properties.info
      remember(prompts, id, parentID)
      if (finish === "stop" && time.completed && !error && !summary && !answered.has(parentID)) {
        remember(answered, parentID, true)
        report("Stop", sessionID, { turn_id: parentID })
      }
    } else if (type === "session.compacted" || (type === "message.removed" && answered.has(properties.messageID))) {
      report("Forgotten", properties.sessionID, {})
    }
  }

  return {
    event: async ({ event }) => heard(event),
    "chat.message": async ({ sessionID }, { message, parts }) => {
      const texts = parts.filter((part) => part.type === "text" && !part.synthetic).map((part) => part.text)
      await report("UserPromptSubmit", sessionID, { turn_id: message.id, prompt: texts.join("\n") })
    },
    "tool.execute.before": async ({ tool, sessionID, callID }) => {
      await reports
      const message = messages.get(`${sessionID} ${callID}`)
      const reason = await decide(
        await of("PreToolUse", sessionID, {
          tool_name: tool,
          turn_id: prompts.get(message) ?? "",
          tool_use_id: `${message ?? randomUUID()}/${callID}`, // a call's id alone is the provider's, and not unique
        }),
      )
      if (reason !== null) throw new Error(reason)
    },
    dispose: () => reports,
  }
}

export default Fencepost
