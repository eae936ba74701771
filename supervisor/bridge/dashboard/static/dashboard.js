// The page is whole without this.  With it: the stream says that something changed, and what differs is put in.
"use strict";

const SLOW_MS = 30000; // "3 min ago" grows old without an event
const AGAIN_MS = 5000;
const live = document.getElementById("live");
let stream = null;
let again = null;
let busy = false;
let wanted = false;

function say(state, text) {
  live.dataset.state = state;
  if (live.textContent !== text) live.textContent = text;
}

function connect() {
  clearTimeout(again);
  if (stream || document.hidden) return;
  stream = new EventSource("/dashboard/events");
  stream.addEventListener("hello", () => { say("on", "Live"); refresh(); });
  stream.addEventListener("changed", refresh);
  stream.onerror = () => {
    lost();
    if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    disconnect();
    again = setTimeout(connect, AGAIN_MS);
  };
}

function disconnect() {
  if (stream) stream.close();
  stream = null;
}

function lost() {
  say("lost", "Not live, as of " + document.body.dataset.asOf);
}

function stamp() {
  document.body.dataset.asOf = new Date().toLocaleTimeString();
}

// One fetch at a time; what changes meanwhile is one more.
async function refresh() {
  wanted = true;
  if (busy) return;
  busy = true;
  try {
    while (wanted) {
      wanted = false;
      const answer = await fetch(location.href, { cache: "no-store", credentials: "same-origin" });
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) { lost(); return; }
      put(new DOMParser().parseFromString(await answer.text(), "text/html"));
      stamp();
      if (stream && stream.readyState === EventSource.OPEN) say("on", "Live");
    }
  } catch {
    lost();
  } finally {
    busy = false;
  }
}

function parts(page) {
  return [...page.querySelectorAll("main [data-live]")];
}

function isBeingRead(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

function put(page) {
  const old = parts(document), fresh = parts(page);
  const same = old.length === fresh.length && old.every((part, place) => part.id === fresh[place].id);
  if (!same) {
    keepingFocus(() => document.querySelector("main").replaceChildren(...page.querySelector("main").childNodes));
    return;
  }
  old.forEach((part, place) => {
    if (part.dataset.source === undefined) part.dataset.source = part.innerHTML;
    const next = fresh[place];
    if (part.dataset.source === next.innerHTML || isBeingRead(part)) return;
    next.dataset.source = next.innerHTML;
    for (const one of part.querySelectorAll("details[open][id]")) {
      next.querySelector("#" + CSS.escape(one.id))?.setAttribute("open", "");
    }
    keepingFocus(() => part.replaceWith(next));
  });
}

// Whoever moves with the keyboard stays where he is.
function keepingFocus(change) {
  const focused = document.activeElement;
  const href = focused?.getAttribute("href"), id = focused?.id, index = href && links(href).indexOf(focused);
  change();
  if (document.activeElement !== document.body || !focused || focused === document.body) return;
  const found = (id && document.getElementById(id)) || (href && (links(href)[index] || links(href)[0]));
  found?.focus({ preventScroll: true });
}

function links(href) {
  return [...document.querySelectorAll("a[href]")].filter((one) => one.getAttribute("href") === href);
}

stamp();
document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else connect(); });
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);
setInterval(() => { if (!document.hidden) refresh(); }, SLOW_MS);
connect();
