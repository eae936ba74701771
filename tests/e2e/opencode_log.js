// Writes down what OpenCode tells a plugin, and does with each call what LOG_DOES says.
import { appendFileSync } from "node:fs"

const Log = async () => {
  const log = (kind, said) => appendFileSync(process.env.LOG, JSON.stringify({ kind, ...said }) + "\n")
  return {
    event: async ({ event }) => log("event", { type: event.type, properties: event.properties }),
    "chat.message": async (input, output) => log("prompt", { session: input.sessionID, message: output.message, parts: output.parts }),
    "tool.execute.before": async (input) => {
      log("call", input)
      if (process.env.LOG_DOES === "throw") throw new Error(process.env.LOG_SAYS.repeat(Number(process.env.LOG_TIMES ?? 1)))
      if (process.env.LOG_DOES === "hang") await new Promise(() => {})
    },
  }
}

export default Log
