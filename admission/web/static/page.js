// The page of Muster: reads api/..., writes nothing. What comes from the cluster becomes text, never markup.

const main = document.getElementById("main");
const live = document.getElementById("live");
const pause = document.getElementById("pause");
const leave = document.getElementById("leave");
const TOKEN = "muster-token";
const PAGE = 100;

let paused = false;
let shown = ""; // the answer that is on the screen, as text
let showing = 0; // counts routes, so that a late answer to an old one is dropped
let me = null;
let wanted = 0; // the newest revision that was told of
let has = 0; // and the one that is on the screen

// ---------------------------------------------------------------- building

function make(space, tag, attributes, children) {
  const element = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "on") for (const [event, told] of Object.entries(value)) element.addEventListener(event, told);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
const h = (tag, attributes, ...children) => make(null, tag, attributes, children);
const s = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);

function age(at, now) {
  const seconds = Math.max(0, Math.floor((now - at) / 1000));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}
const time = (at, now) =>
  h("time", { datetime: new Date(at).toISOString(), title: new Date(at).toLocaleString() }, `${age(at, now)} ago`);

function table(caption, columns, rows) {
  const head = columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name));
  const body = rows.map((cells) =>
    h("tr", {}, cells.map((cell, i) =>
      i === 0 ? h("th", { scope: "row" }, cell) : h("td", { class: columns[i][1] }, cell))));
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

const jobLink = (job) => `#/job?namespace=${encodeURIComponent(job.namespace)}&workload=${encodeURIComponent(job.workload)}`;
const link = (href, ...text) => h("a", { href, "data-key": href }, ...text);
const state = (word, text) => h("span", { class: `state ${word}` }, text ?? word);
const places = (where) => where.map((part) => [
  part.nodes.length ? part.nodes.map((n) => (n.pods > 1 ? `${n.name} x${n.pods}` : n.name)).join(", ")
    : `${part.pods} on ${part.flavors.join(", ")}`]).join("; ");

// ---------------------------------------------------------------- bars

const WIDTH = 200;

function quotaBar(room) {
  const whole = Math.max(room.nominal + room.borrowed, room.used, 1);
  const wide = (amount) => Math.round((amount / whole) * WIDTH);
  const own = wide(room.nominal);
  const used = wide(Math.min(room.used - room.borrowed, room.nominal));
  const lent = Math.min(wide(room.lent), own - used);
  const said = `${room.texts.used} of ${room.texts.nominal} used, ${room.texts.borrowed} borrowed, ${room.texts.lent} lent`;
  return s("svg", { class: "bar", viewBox: `0 0 ${WIDTH} 16`, preserveAspectRatio: "none", role: "img", "aria-label": said },
    s("title", {}, said),
    s("rect", { class: "own", width: own, height: 16 }),
    s("rect", { class: "used", width: used, height: 16 }),
    s("rect", { class: "lent", x: own - lent, width: lent, height: 16 }),
    s("rect", { class: "borrowed", x: own, width: Math.max(wide(room.borrowed), wide(room.used) - own), height: 16 }),
    s("line", { class: "edge", x1: own, x2: own, y1: 0, y2: 16 }));
}

function nodeBar(node, whole) {
  let at = 0;
  const parts = node.gangs.map((gang) => {
    const held = gang.holds.find((one) => one.resource === whole.resource)?.amount ?? 0;
    const width = Math.min(WIDTH - at, (held / whole.amount) * WIDTH);
    const rect = s("rect", { class: `g${colour(gang.label)}`, x: at, width: Math.max(0, width - 1), height: 16 });
    at += width;
    return rect;
  });
  const said = `${whole.resource}: ${whole.texts.used} of ${whole.texts.all} taken`;
  return s("svg", { class: "bar", viewBox: `0 0 ${WIDTH} 16`, preserveAspectRatio: "none", role: "img", "aria-label": said },
    s("title", {}, said), s("rect", { class: "own", width: WIDTH, height: 16 }), parts);
}

// One after the other, so that neighbours differ; a gang keeps its own for as long as the page is open.
const colours = new Map();

function colour(label) {
  if (!colours.has(label)) colours.set(label, colours.size % 6);
  return colours.get(label);
}

// ---------------------------------------------------------------- views

const legend = (entries) => h("ul", { class: "legend" }, entries.map(([kind, text]) =>
  h("li", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { class: kind, width: 10, height: 10 })), text)));

// Buttons to the pages before and after, where there are more than one.
function pager(name, query, offset, size, total) {
  const last = Math.min(offset + size, total);
  const go = (to) => { query.set("offset", to); location.hash = `#/${name}?${query}`; };
  return total > size && h("p", {},
    h("button", { type: "button", "data-key": "before", disabled: offset === 0, on: { click: () => go(Math.max(0, offset - size)) } }, "Before"), " ",
    h("button", { type: "button", "data-key": "after", disabled: last >= total, on: { click: () => go(offset + size) } }, "After"),
    ` ${offset + 1} to ${last} of ${total}`);
}

// A page of rows; when it has none any more, for others have gone, the last one that has.
async function page(path, query, size, asked) {
  const offset = Number(query.get("offset") ?? 0);
  const answer = await api(path, { ...asked, offset, limit: size });
  if (answer.items.length || !offset) return [answer, offset];
  query.set("offset", Math.floor(Math.max(0, Math.min(answer.total, offset) - 1) / size) * size);
  return page(path, query, size, asked);
}

const views = {
  async queues() {
    const answer = await api("queues");
    const rows = answer.items.flatMap((row) => {
      const query = row.kind === "ClusterQueue" ? `queue=${encodeURIComponent(row.name)}`
        : row.kind === "LocalQueue" ? `namespace=${encodeURIComponent(row.namespace)}` : "";
      const name = row.namespace ? `${row.namespace}/${row.name}` : row.name;
      const label = () => h("span", { class: `d${Math.min(row.depth, 5)}` },
        query ? link(`#/jobs?${query}`, name) : name, " ", h("span", { class: "soft" }, row.kind));
      const word = row.stopped ? state("stopped") : row.active ? "" : [state("inactive"), " ", row.message];
      const counts = [String(row.pending), String(row.admitted)];
      const quota = row.quota.length ? row.quota : [null];
      return quota.map((room, i) => [
        label(),
        room ? `${room.resource} (${room.flavor})` : "",
        room ? room.texts.used : "",
        room?.texts.nominal ?? "",
        room && "nominal" in room ? quotaBar(room) : "",
        ...(i ? ["", "", ""] : [...counts, word])]);
    });
    const columns = [["Name"], ["Resource"], ["Used", "number"], ["Own", "number"], ["Share of it"],
      ["Waiting", "number"], ["Running", "number"], ["State"]];
    return [answer, "Queues", [
      answer.total > answer.items.length && h("p", {}, `The first ${answer.items.length} of ${answer.total} are shown.`),
      legend([["used", "used"], ["borrowed", "borrowed, beyond its own"], ["lent", "lent to others"], ["own", "free"]]),
      table("Cohorts and queues, each below its parent", columns, rows)]];
  },

  async jobs(query) {
    const asked = { queue: query.get("queue") ?? "", namespace: query.get("namespace") ?? "" };
    const [answer, offset] = await page("jobs", query, PAGE, asked);
    const rows = answer.items.map((job) => [
      [link(jobLink(job), `${job.namespace}/${job.name}`), " ", h("span", { class: "soft" }, job.kind)],
      `${job.queue}${job.clusterQueue ? ` in ${job.clusterQueue}` : ""}`,
      state(job.state),
      job.position ? `${job.position} of ${job.of}` : "",
      String(job.pods),
      age(job.created, answer.now),
      job.state === "waiting" ? [h("strong", {}, job.reason), " ", job.message] : job.where ? places(job.where) : job.message]);
    const columns = [["Job"], ["Queue"], ["State"], ["Place", "number"], ["Pods", "number"], ["Age", "number"], ["Why it waits, or where it is", "why"]];
    const scope = [...query].filter(([name, value]) => name !== "offset" && value).map(([name, value]) => `${name} ${value}`).join(", ");
    return [answer, "Jobs", [
      h("p", {}, scope ? [`Of ${scope}. `, link("#/jobs", "Show all"), ". "] : "", `${answer.waiting} wait of ${answer.total} that are not finished.`),
      answer.items.length ? table("Those that wait come first, in the order of their queues", columns, rows) : h("p", {}, "No job waits or runs."),
      pager("jobs", query, offset, PAGE, answer.total)]];
  },

  async nodes(query) {
    if (!me.nodes) return [{}, "Nodes", [h("p", {}, "You may not list nodes. Where your own jobs run is told with each job.")]];
    const [answer, offset] = await page("nodes", query, 5 * PAGE, {});
    const cards = answer.items.map((node) => h("li", {},
      h("h3", {}, node.name, " ", !node.ready && state("inactive", "not ready"), " ", node.cordoned && state("stopped", "cordoned"),
        node.taints.map((key) => [" ", state("stopped", `taint ${key}`)])),
      node.capacity.map((whole) => [
        h("div", { class: "soft" }, `${whole.resource}: ${whole.texts.free} of ${whole.texts.all} free`), nodeBar(node, whole)]),
      node.gangs.length > 0 && h("ul", {}, node.gangs.map((gang) => h("li", {},
        gang.workload ? link(jobLink(gang), gang.label) : gang.label, " ",
        h("span", { class: "soft" }, gang.holds.map((one) => `${one.text} ${one.resource}`).join(", ")))))));
    return [answer, "Nodes", [
      h("p", {}, `${answer.total} nodes: who sits where.`),
      h("ul", { class: "nodes" }, cards),
      pager("nodes", query, offset, 5 * PAGE, answer.total)]];
  },

  async job(query) {
    const answer = await api("job", { namespace: query.get("namespace") ?? "", workload: query.get("workload") ?? "" });
    const { job, story, now } = answer;
    const facts = [
      ["State", [state(job.state), " for ", age(job.since, now)]],
      job.queue && ["Queue", `LocalQueue ${job.queue}${job.clusterQueue ? `, ClusterQueue ${job.clusterQueue}` : ""}`],
      job.position && ["Place", `${job.position} of ${job.of} in its LocalQueue; ${job.ahead} before it in the ClusterQueue`],
      job.requests && ["Asks for", `${job.requests.map((one) => `${one.text} ${one.resource}`).join(", ")} in ${job.pods} pods`],
      job.reason && ["Reason", `${job.reason}${job.detail ? ` (${job.detail})` : ""}`],
      job.message && ["Because", job.message],
      job.where && ["Where", places(job.where)],
      job.ready !== undefined && ["Ready", `${job.ready} of the ${job.given} pods that it has room for`],
      job.means && ["It means", job.means],
      job.owner && ["You can", job.owner],
      job.platform && ["The platform team can", job.platform],
    ].filter(Boolean);
    const quota = (job.numbers ?? []).filter((one) => one.requested);
    return [answer, `${job.kind} ${job.namespace}/${job.name}`, [
      h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      quota.length > 0 && [h("h3", {}, "The numbers behind it"),
        table("Quota that it asks for", [["Flavor"], ["Resource"], ["Asked", "number"], ["It could have now", "number"], ["Own", "number"], ["Used", "number"], ["Ends at"]],
          quota.map((one) => [one.flavor, one.resource, one.texts.requested, one.texts.available, one.texts.nominal, one.texts.used, one.limitedBy]))],
      h("h3", {}, "Its story"),
      h("ol", { class: "story", "aria-label": "What happened, oldest first" }, story.map((entry) => h("li", {},
        time(entry.at, now), h("strong", {}, entry.what), entry.reason && h("span", { class: "soft" }, entry.reason, " "),
        entry.message, entry.decision && h("span", { class: "soft", title: "Id of the decision: the controller's log and the job's Events name it" }, " ", entry.decision),
        entry.where.length > 0 && h("div", { class: "soft" }, places(entry.where)))))]];
  },
};

// ---------------------------------------------------------------- showing

function route() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  return [name in views ? name : "queues", new URLSearchParams(query ?? "")];
}

async function show(moved) {
  const turn = moved ? ++showing : showing;
  const [name, query] = route();
  try {
    me ??= await api("me");
    const [answer, title, body] = await views[name](query);
    if (turn !== showing) return;
    greet(answer.leading);
    has = answer.revision ?? wanted;
    const text = JSON.stringify({ ...answer, now: 0, revision: 0 });
    // Ages move on with the next change; what somebody has selected is not taken from under them.
    if (!moved && (text === shown || !getSelection().isCollapsed)) return;
    shown = text;
    put(title, body, moved);
  } catch (error) {
    if (turn !== showing) return;
    if (error.status === 401) login(sessionStorage.getItem(TOKEN) ? error.message : "");
    else put("That did not work", [h("p", { class: "problem" }, error.message)], moved);
    shown = "";
  }
}

function put(title, body, moved) {
  const [name] = route();
  for (const anchor of document.querySelectorAll("nav a")) {
    if (anchor.hash === `#/${name}`) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  const key = main.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  document.title = `${title} - Muster`;
  main.replaceChildren(h("h2", {}, title), ...[body].flat(9).filter(Boolean));
  if (key) main.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  else if (moved && moved !== "first") main.focus();
}

function greet(leading) {
  leave.hidden = !sessionStorage.getItem(TOKEN);
  const sees = me.namespaces === null ? "all namespaces" : me.namespaces.length ? `namespaces ${me.namespaces.join(", ")}` : "no namespace";
  document.getElementById("who").textContent = `${me.user}, who sees ${sees}.`
    + (leading === false ? " This replica does not lead: reasons are those that were last written." : "");
}

function login(problem) {
  me = null;
  leave.hidden = true;
  document.getElementById("who").textContent = "";
  if (main.querySelector("form.login") && !problem) return;
  const field = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-help" });
  const enter = (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, field.value.trim());
    start("first");
  };
  put("Sign in", [
    problem && h("p", { class: "problem", role: "alert" }, problem),
    h("form", { class: "login", on: { submit: enter } },
      h("label", { for: "token" }, "Bearer token of this cluster"), field,
      h("button", { type: "submit" }, "Sign in"),
      h("p", { id: "token-help", class: "soft" }, "For example of ", h("code", {}, "kubectl create token NAME -n NAMESPACE"),
        ". It is kept in this tab until it is closed, and is sent to this server alone, which asks the API server whose it is."))], false);
  field.focus();
}

// ---------------------------------------------------------------- talking

function headers() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function api(path, query) {
  const search = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== ""));
  const answer = await fetch(`api/${path}?${search}`, { headers: headers(), cache: "no-store" });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  throw Object.assign(new Error(body.message ?? `the server answers ${answer.status}`), { status: answer.status });
}

const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const say = (text) => { if (live.textContent !== text) live.textContent = text; };

let listening = null;

// EventSource can send no Authorization header: the same, by hand.
async function listen(stop) {
  let pauseMs = 1000;
  while (!stop.aborted) {
    try {
      const answer = await fetch("api/changes", { headers: headers(), signal: stop, cache: "no-store" });
      if (answer.status === 401) return login(sessionStorage.getItem(TOKEN) ? "The token has ended; sign in again." : "");
      if (!answer.ok) throw new Error(String(answer.status));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      pauseMs = 1000;
      if (!paused) say("Live");
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) if (event.startsWith("event: changed")) wanted = Number(event.split("data: ")[1]);
        // The server gives an answer again for a second: the first may be older than what was told. The second is not, or
        // is of another replica, which counts for itself.
        for (let look = 0; look < 2 && events.length && has !== wanted && !paused && !document.hidden; look++) {
          const before = wanted;
          if (look) await wait(1000);
          await show(false);
          if (has >= before || stop.aborted) break;
        }
      }
    } catch {
      if (stop.aborted) return;
      if (!paused) { say("Not connected; trying again"); await show(false); }
    }
    await wait(pauseMs);
    pauseMs = Math.min(30000, pauseMs * 2);
  }
}

async function start(moved) {
  me = null;
  await show(moved);
  if (!me) return say("Not signed in");
  listening?.abort();
  listening = new AbortController();
  listen(listening.signal);
}

// ---------------------------------------------------------------- wiring

pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  say(paused ? "Paused" : "Live");
  if (!paused) show(false);
});
leave.addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  listening?.abort();
  say("Not signed in");
  login("");
});
document.getElementById("skip").addEventListener("click", () => main.focus());
addEventListener("hashchange", () => show("moved"));
document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused && me) show(false); });
start("first");
