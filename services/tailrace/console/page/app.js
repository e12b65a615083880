// The console's page: what the server pushes is drawn anew. Text from the cluster only ever becomes text, never markup.
"use strict";

const VIEWS = { map: "Map", topics: "Topics", groups: "Groups", tail: "Tail", failovers: "Failovers", drills: "Drills" };
const TAIL_ROWS_MAX = 500;
const RETRY_MS = 3000;
const SEARCH_MS = 2000;
const TYPING_MS = 300;
// Of a topic, how many replicas say why they are out of service.
const REASONS_MAX = 5;
const state = { cluster: null, groups: null, groups_left_out: 0, story: null, view: "map", tail: null, tailed: [], found: null, typing: 0, unfolded: new Set() };

const at = (id) => document.getElementById(id);

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined).map((each) => (each instanceof Node ? each : String(each))));
  return made;
}

const number = (value) => Number(value).toLocaleString("en");
const clock = (ms) => (ms > 0 ? new Date(ms).toLocaleTimeString([], { hour12: false }) + "." + String(ms % 1000).padStart(3, "0") : "–");
const day = (ms) => (ms > 0 ? new Date(ms).toLocaleDateString() : "");

function span(ms) {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 120000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7200000) return `${Math.round(ms / 60000)} min`;
  return `${Math.round(ms / 3600000)} h`;
}

// `isrRecoveryMs: 14200` of a report as people say it.
function figure([name, value]) {
  const words = name.replace(/Ms$/, "").replace(/[A-Z]/g, (letter) => " " + letter.toLowerCase());
  if (typeof value !== "number") return `${words} ${value}`;
  return `${words} ${name.endsWith("Ms") ? span(value) : number(value)}`;
}

function moment(text) {
  const ms = Date.parse(text);
  return element("time", { datetime: text }, Number.isNaN(ms) ? text : `${day(ms)} ${new Date(ms).toLocaleTimeString([], { hour12: false })}`);
}

function table(titles, rows, empty) {
  if (!rows.length) return element("p", { class: "empty" }, empty);
  const head = titles.map((title) => element("th", { class: title.startsWith("#") ? "number" : null, scope: "col" }, title.replace("#", "")));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, column) => {
    const isNumber = titles[column].startsWith("#");
    const made = cell instanceof Node && cell.tagName === "TD" ? cell : element("td", {}, cell);
    if (isNumber) made.classList.add("number");
    return made;
  })));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

function tile(value, text, level) {
  return element("div", { class: "tile" + (level ? " " + level : "") }, element("b", {}, value), element("span", {}, text));
}

function counted(cluster) {
  const tally = { partitions: 0, offline: 0, undecided: 0, out: 0, short: 0, under: 0, turned: 0 };
  for (const topic of cluster.topics) {
    for (const each of topic.partitions) {
      tally.partitions += 1;
      tally.offline += each.health.includes("offline");
      tally.short += each.health.includes("under-min-isr");
      tally.undecided += each.health.includes("needs-decision");
      tally.out += each.health.includes("replica-out-of-service");
      tally.under += each.health.includes("under-replicated");
      tally.turned += each.health.includes("leader-not-preferred");
    }
  }
  return tally;
}

function drawStale() {
  const { store_problem: problem, store_problem_since_ms: since } = state.cluster;
  at("stale").hidden = !problem;
  at("stale").textContent = problem ? `Metadata may be stale since ${day(since)} ${new Date(since).toLocaleTimeString([], { hour12: false })}: brokers do not believe the metadata store: ${problem}. Put the right store back, or rebuild it with tailrace cluster recover.` : "";
}

function drawTiles() {
  const cluster = state.cluster;
  drawStale();
  const tally = counted(cluster);
  const away = cluster.brokers.filter((each) => !each.live);
  const lag = (state.groups || []).reduce((sum, each) => sum + each.lag, 0);
  at("tiles").replaceChildren(
    tile(cluster.brokers.length - away.length, away.length ? `brokers; ${away.map((each) => `b${each.id}`).join(", ")} away` : "brokers", away.length ? "warn" : ""),
    cluster.store_problem ? tile("?", "active controller", "bad") : tile(cluster.controller_id >= 0 ? `c${cluster.controller_id}` : "none", "active controller", cluster.controller_id >= 0 ? "" : "bad"),
    tile(number(tally.partitions), `partitions of ${number(cluster.topics.length)} topics`),
    tile(number(tally.offline), "offline", tally.offline ? "bad" : ""),
    tile(number(tally.short), "under min ISR", tally.short ? "bad" : ""),
    tile(number(tally.undecided), "need a decision", tally.undecided ? "bad" : ""),
    tile(number(tally.out), "with a replica out of service", tally.out ? "bad" : ""),
    tile(number(tally.under), "under-replicated", tally.under ? "warn" : ""),
    tile(number(tally.turned), "not led by the first replica"),
    tile(number(cluster.shards_unowned), "shards without coordinator", cluster.shards_unowned ? "bad" : ""),
    tile(number(lag), `records behind, in ${number((state.groups || []).length)} groups${state.groups_left_out ? "; " + number(state.groups_left_out) + " more not asked" : ""}`),
  );
}

function drawMap() {
  const cluster = state.cluster;
  drawTiles();
  const strips = cluster.topics.map((topic) => strip(topic, cluster));
  const more = cluster.topics_left_out ? element("p", { class: "faint" }, `${number(cluster.topics_left_out)} more topics are not shown.`) : null;
  at("grid").replaceChildren(strips.length ? element("div", { class: "strips" }, ...strips) : element("p", { class: "empty" }, "There is no topic yet: tailrace topics create NAME"), ...(more ? [more] : []));
}

function strip(topic, cluster) {
  const used = cluster.brokers.filter((broker) => topic.partitions.some((each) => each.replicas.includes(broker.id)));
  const rows = used.map((broker) => {
    const cells = topic.partitions.map((each, partition) => cell(topic, each, partition, broker));
    const name = element("span", { class: broker.live ? null : "gone", title: broker.address || "not registered" }, `b${broker.id}${broker.live ? "" : " ✕"}`);
    return element("div", { class: "row" }, name, element("div", { class: "cells" }, ...cells));
  });
  return element("div", { class: "strip" }, element("h3", {}, topic.name + " ", element("small", {}, `${topic.partitions.length} partitions`)), ...rows);
}

function cell(topic, each, partition, broker) {
  let kind = "none";
  let what = "no replica";
  if (each.replicas.includes(broker.id)) {
    const inSync = each.isr.includes(broker.id);
    if (each.leader === broker.id) [kind, what] = ["leader", "leads"];
    else if (each.adding.includes(broker.id) && !inSync) [kind, what] = ["adding", "is being added"];
    else if (each.leader < 0) [kind, what] = ["headless", "nobody leads"];
    else if (!broker.live) [kind, what] = ["away", "is away"];
    else if (each.out_of_service[broker.id]) [kind, what] = ["behind", `is out of service: ${each.out_of_service[broker.id]}`];
    else if (inSync) [kind, what] = ["follower", "is in sync"];
    else [kind, what] = ["behind", "is not in sync"];
  }
  const title = `${topic.name}-${partition}: broker ${broker.id} ${what}; epoch ${each.epoch}, in sync ${each.isr.join(", ") || "none"}`;
  return element("i", { class: `cell ${kind}`, title, role: "img", "aria-label": title });
}

function drawTopics() {
  const rows = state.cluster.topics.map((topic) => {
    const replicas = Math.max(0, ...topic.partitions.map((each) => each.replicas.length));
    const smallest = Math.min(...topic.partitions.map((each) => (each.leader < 0 ? 0 : each.isr.length)));
    const wrong = [...new Set(topic.partitions.flatMap((each) => each.health))];
    const bad = wrong.some((each) => ["offline", "under-min-isr", "needs-decision", "replica-out-of-service"].includes(each));
    const reasons = topic.partitions.flatMap((each, partition) => [
      ...(each.conflict ? [`${partition}: a person has to decide: ${each.conflict}`] : []),
      ...Object.entries(each.out_of_service).map(([broker, why]) => `${partition}: out of service on broker ${broker}: ${why}`),
    ]);
    const why = reasons.slice(0, REASONS_MAX).map((each) => element("div", { class: "bad" }, each));
    const health = element("span", { class: wrong.length ? (bad ? "bad" : "warn") : "good" }, wrong.join(", ") || "well");
    const lost = topic.partitions.filter((each) => each.loss).length;
    const config = Object.entries(topic.config).map(([name, value]) => `${name}=${value}`).join(" ");
    return [topic.name, number(topic.partitions.length), replicas, `${smallest} of ${replicas}`, topic.min_insync, element("td", {}, health, lost ? element("span", { class: "bad" }, ` loss on record in ${lost}`) : null, ...why, reasons.length > REASONS_MAX ? element("div", { class: "faint" }, `and ${number(reasons.length - REASONS_MAX)} more`) : null), element("td", { class: "faint" }, config)];
  });
  at("topics").replaceChildren(table(["Topic", "#Partitions", "#Replicas", "#Smallest ISR", "#Min ISR", "Health", "Settings"], rows, "There is no topic yet."));
}

// Far too many groups to show all: those that are looked for are asked for by name.
async function findGroups() {
  const search = at("groupsearch").value.trim();
  if (!search) {
    state.found = null;
  } else {
    try {
      const found = await (await fetch(`groups?${new URLSearchParams({ search })}`)).json();
      if (at("groupsearch").value.trim() !== search) return;
      state.found = found;
    } catch (error) {
      state.found = { groups: [], left_out: 0, problem: `the console does not answer: ${error.message}` };
    }
  }
  if (state.view === "groups") drawGroups();
}

function drawGroups() {
  const shown = state.found ? state.found.groups : state.groups || [];
  const more = state.found ? state.found.left_out : state.groups_left_out;
  const which = state.found ? "more words find fewer" : "those with members first; search finds the others";
  at("groupcount").textContent = (state.found && state.found.problem) || (more ? `${number(shown.length)} of ${number(shown.length + more)} groups, ${which}` : `${number(shown.length)} ${shown.length === 1 ? "group" : "groups"}`);
  const groups = [...shown].sort((a, b) => b.lag_ms - a.lag_ms || b.lag - a.lag || a.group.localeCompare(b.group));
  const most = Math.max(1, ...groups.map((each) => each.lag));
  const rows = groups.map((each) => {
    const topics = each.topics.map((one) => `${one.topic} ${number(one.lag)}`).join(", ");
    const bar = element("div", { class: "bar", role: "img", "aria-label": `${each.lag} records behind` }, element("i", { style: { width: `${(100 * each.lag) / most}%` } }));
    const stateClass = each.state === "Stable" ? "good" : each.state === "Empty" ? "faint" : "warn";
    return [each.group, each.kind, element("span", { class: stateClass }, each.state), number(each.members.length), number(each.lag), each.lag ? span(each.lag_ms) : "–", element("td", {}, bar), element("td", { class: "faint" }, topics)];
  });
  at("grouprows").replaceChildren(table(["Group", "Kind", "State", "#Members", "#Records behind", "#Time behind", "", "Topics"], rows, state.found ? "No group has such a name." : "No group has committed anything yet."));
}

function drawFailovers() {
  const chapters = (state.story || []).map((each) => {
    const lost = each.moves.filter((move) => move.loss);
    const between = [...new Set(each.moves.map((move) => `${move.from < 0 ? "nobody" : "broker " + move.from} → ${move.to < 0 ? "nobody" : "broker " + move.to}`))];
    return element("article", { class: "chapter" + (lost.length ? " loss" : "") },
      element("time", {}, `${day(each.decided_ms)} ${clock(each.decided_ms)}`), ` · controller ${each.controller_id}, decided ${span(each.took_ms)} after it was noticed`,
      element("div", {}, element("strong", {}, each.cause)),
      element("div", {}, `${number(each.count)} ${each.count === 1 ? "partition" : "partitions"}: ${between.slice(0, 6).join(", ")}${between.length > 6 ? " …" : ""}`),
      lost.length ? element("div", { class: "bad" }, `records may be lost in ${lost.length}: ${lost[0].loss}`) : null,
      which(each));
  });
  at("failovers").replaceChildren(...(chapters.length ? chapters : [element("p", { class: "empty" }, "No leader has changed.")]));
}

// The partitions of a failover, drawn when they are asked for; what was unfolded stays so when news come.
function which(chapter) {
  const key = chapter.moves.length ? `${chapter.cause} ${chapter.moves[0].partition} ${chapter.moves[0].epoch}` : chapter.cause;
  const made = element("details", { open: state.unfolded.has(key) ? "" : null }, element("summary", {}, "which"));
  const fill = () => {
    if (!made.open || made.childElementCount > 1) return;
    const rows = chapter.moves.map((move) => [move.partition, move.from < 0 ? "–" : move.from, move.to < 0 ? "–" : move.to, move.epoch, move.loss]);
    made.append(table(["Partition", "From", "To", "#Epoch", "Loss"], rows, ""));
    if (chapter.count > rows.length) made.append(element("p", { class: "faint" }, `and ${number(chapter.count - rows.length)} more`));
  };
  made.addEventListener("toggle", () => {
    if (made.open) state.unfolded.add(key);
    else state.unfolded.delete(key);
    fill();
  });
  fill();
  return made;
}

function drawDrills() {
  fetch("drills").then((answer) => answer.json()).then((found) => {
    const rows = found.drills.map((each) => {
      const level = each.phase === "Failed" || each.phase === "Refused" ? "bad" : each.phase === "Passed" ? "good" : "faint";
      const report = Object.entries(each.report).map(figure).join(", ");
      return [each.name, each.kind, each.cluster, element("span", { class: level }, each.phase), moment(each.ended || each.started), element("td", {}, each.message ? element("div", {}, each.message) : null, element("div", { class: "faint" }, report))];
    });
    at("drills").replaceChildren(table(["Drill", "Kind", "Cluster", "Verdict", "Ended", "Report"], rows, found.problem || "No drill was run."));
  }).catch((error) => at("drills").replaceChildren(element("p", { class: "empty" }, `The console does not answer: ${error.message}`)));
}

function drawTailTopics() {
  const select = at("tailtopic");
  const names = state.cluster.topics.map((each) => each.name);
  if ([...select.options].map((each) => each.value).join("\n") === names.join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  select.value = names.includes(chosen) ? chosen : names.find((name) => !name.startsWith("__")) || names[0] || "";
}

function drawTail() {
  const rows = state.tailed.map((each) => [clock(each.time_ms), `${each.partition}:${each.offset}`, element("td", { class: "text" }, each.key === null ? "" : each.key), element("td", { class: "text" }, each.value === null ? element("span", { class: "faint" }, "null") : each.value)]);
  at("tailrecords").replaceChildren(table(["Time", "Partition:offset", "Key", "Value"], rows, state.tail ? "Waiting for records…" : "Choose a topic, and follow its end."));
}

function follow(event) {
  event.preventDefault();
  stopTail();
  state.tailed = [];
  const asked = new URLSearchParams({ topic: at("tailtopic").value, search: at("tailsearch").value });
  state.tail = new EventSource(`tail?${asked}`);
  state.tail.addEventListener("records", (message) => {
    const push = JSON.parse(message.data);
    state.tailed = [...push.records.reverse(), ...state.tailed].slice(0, TAIL_ROWS_MAX);
    at("tailcount").textContent = `${number(push.found)} of ${number(push.seen)} records${push.problem ? "; " + push.problem : ""}`;
    drawTail();
  });
  state.tail.addEventListener("trouble", (message) => { at("tailcount").textContent = JSON.parse(message.data); });
  // A browser tries again by itself when a stream breaks, and never after a refusal.
  state.tail.onerror = () => { at("tailcount").textContent = state.tail && state.tail.readyState === EventSource.CLOSED ? "the console refused: the topic is gone, or too many tails are open in other pages" : "the stream broke; trying again…"; };
  drawTail();
}

function stopTail() {
  if (state.tail) state.tail.close();
  state.tail = null;
  drawTail();
}

const DRAW = { map: drawMap, topics: drawTopics, groups: drawGroups, failovers: drawFailovers, tail: drawTailTopics };
// What is drawn anew when a part has come: no view that it says nothing to, and of the map no cell for the sake of groups.
const NEWS = {
  cluster: { map: drawMap, topics: drawTopics },
  groups: { map: drawTiles, groups: drawGroups },
  groups_left_out: { map: drawTiles, groups: drawGroups },
  story: { failovers: drawFailovers },
};

function draw() {
  if (!state.cluster) return;
  drawTailTopics();
  if (DRAW[state.view]) DRAW[state.view]();
}

function show(view) {
  state.view = view in VIEWS ? view : "map";
  for (const name of Object.keys(VIEWS)) {
    at(name).hidden = name !== state.view;
    at(`tab-${name}`).setAttribute("aria-selected", String(name === state.view));
  }
  if (state.view === "drills") drawDrills();
  if (state.view === "tail") drawTail();
  draw();
}

function listen() {
  const events = new EventSource("events");
  events.onopen = () => { at("state").className = "state live"; };
  events.onerror = () => {
    at("state").className = "state lost";
    at("state").textContent = "the console does not answer; trying again…";
    // After a refusal (too many pages) the browser itself would not.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, RETRY_MS);
  };
  for (const part of Object.keys(NEWS)) {
    events.addEventListener(part, (message) => {
      state[part] = JSON.parse(message.data);
      if (part === "cluster" && state.cluster) at("state").textContent = `${state.cluster.cluster_id.slice(0, 8)} · revision ${number(state.cluster.revision)}`;
      if (!state.cluster) return;
      if (part === "cluster") drawTailTopics();
      if (NEWS[part][state.view]) NEWS[part][state.view]();
    });
  }
  events.addEventListener("trouble", (message) => {
    const said = JSON.parse(message.data);
    at("trouble").hidden = !said;
    at("trouble").textContent = said || "";
  });
}

function theme(dark) {
  document.documentElement.classList.toggle("dark", dark);
}

const wanted = new URLSearchParams(location.search).get("theme") || localStorage.getItem("theme");
theme(wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
at("theme").addEventListener("click", () => {
  theme(!document.documentElement.classList.contains("dark"));
  localStorage.setItem("theme", document.documentElement.classList.contains("dark") ? "dark" : "light");
});
at("tabs").append(...Object.entries(VIEWS).map(([name, title]) => {
  const tab = element("button", { type: "button", id: `tab-${name}`, role: "tab", "aria-controls": name }, title);
  tab.addEventListener("click", () => { location.hash = name; });
  return tab;
}));
at("groupsearch").addEventListener("input", () => { clearTimeout(state.typing); state.typing = setTimeout(findGroups, TYPING_MS); });
at("groupform").addEventListener("submit", (event) => { event.preventDefault(); findGroups(); });
setInterval(() => { if (state.view === "groups" && state.found) findGroups(); }, SEARCH_MS);
at("tailform").addEventListener("submit", follow);
at("tailstop").addEventListener("click", stopTail);
addEventListener("hashchange", () => show(location.hash.slice(1)));
show(location.hash.slice(1) || "map");
listen();
