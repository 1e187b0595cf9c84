"use strict";
// The list of problems, and one answer in full: its numbers, its timeline and its text step by step.

const list = document.getElementById("problems");
const detail = document.getElementById("detail");
const ORDERS = {
  file: () => 0,
  speedup: (problem) => -best(problem, (answer) => answer.speedup ?? 0),
  slow: (problem) => -best(problem, (answer) => (answer.speedup === null ? -Infinity : -answer.speedup)),
  loss: (problem) => -count(problem, (answer) => isRight(baselineOf(problem)) && answer.correct === false),
  wrong: (problem) => -count(problem, (answer) => answer.correct === false),
};
let chosen = null;
let chosenSeries = null;
let redraw = () => {};

function best(problem, measure) {
  return Math.max(...problem.answers.map(measure));
}

function count(problem, holds) {
  return problem.answers.filter(holds).length;
}

function isRight(answer) {
  return Boolean(answer && answer.correct);
}

function baselineOf(problem) {
  return problem.answers.find((answer) => answer.baseline);
}

function nameOf(problem) {
  const several = data.problems.some((other) => other.sample);
  return problem.id + (several ? `, sample ${problem.sample + 1}` : "");
}

function gradeMark(answer) {
  const [sign, kind, text] = answer.correct === true ? ["✓", "right", "right"] : answer.correct === false ? ["✗", "wrong", "wrong"] : ["·", "none", "not graded"];
  return element("span", { class: `mark-${kind}`, title: `${data.series[answer.series].strategy}: ${text}` }, sign);
}

function matches(problem, wanted) {
  const text = [problem.id, problem.level, problem.task, problem.reference, problem.question, ...problem.answers.map((answer) => answer.prediction)];
  const searched = text.filter(Boolean).join("\n").toLowerCase();
  return wanted.every((word) => searched.includes(word));
}

function fillList() {
  const wanted = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rank = ORDERS[document.getElementById("order").value];
  const found = data.problems.filter((problem) => matches(problem, wanted)).map((problem) => ({ problem, rank: rank(problem) }));
  found.sort((one, other) => one.rank - other.rank);
  list.replaceChildren(...found.map(({ problem }) => listItem(problem)));
  if (!found.length) list.append(element("li", { class: "none" }, data.problems.length ? "No problem matches." : "No single answers are shown."));
  return found.map(({ problem }) => problem);
}

function listItem(problem) {
  const place = data.problems.indexOf(problem);
  const speedups = problem.answers.map((answer) => answer.speedup).filter((value) => value !== null);
  const item = element("li", { id: `problem-${place}`, role: "option", "aria-selected": problem === chosen, onclick: () => choose(problem) },
    element("span", { class: "head" }, element("b", {}, nameOf(problem)),
      speedups.length ? element("span", { class: "small" }, `${short(Math.max(...speedups))}×`) : null,
      element("span", { class: "dots" }, ...problem.answers.map(gradeMark))),
    element("span", { class: "q" }, (data.runs.length > 1 ? `${data.runs[problem.run]}: ` : "") + problem.question.slice(0, 90)));
  return item;
}

function choose(problem, series = null) {
  chosen = problem;
  for (const item of list.querySelectorAll("[role=option]")) {
    const selected = item.id === `problem-${data.problems.indexOf(problem)}`;
    item.setAttribute("aria-selected", selected);
    if (selected) {
      list.setAttribute("aria-activedescendant", item.id);
      list.scrollTop = Math.min(Math.max(list.scrollTop, item.offsetTop - list.offsetTop + item.offsetHeight - list.clientHeight), item.offsetTop - list.offsetTop);
    }
  }
  const strategy = (answer) => data.series[answer.series].strategy;
  const answer = problem.answers.find((other) => strategy(other) === (series ?? chosenSeries))
    ?? problem.answers.find((other) => !other.baseline && other.steps.some((step) => step.verdict))
    ?? problem.answers.find((other) => !other.baseline) ?? problem.answers[0];
  chosenSeries = strategy(answer);
  show(problem, answer);
}

function show(problem, answer) {
  const baseline = baselineOf(problem);
  const { timeline } = answer;
  const parts = [{ label: `${data.series[answer.series].label}, ${seconds(timeline?.seconds ?? null)}`, timeline }];
  if (baseline && baseline !== answer) {
    const other = baseline.timeline;
    parts.push({ label: `${data.series[baseline.series].label} (the baseline) on the same axis, ${seconds(other?.seconds ?? null)}`, timeline: other });
  }
  const drawn = timelines(parts);
  const about = [problem.task === "auto" ? null : problem.task, problem.level && `level ${problem.level}`, data.runs.length > 1 && data.runs[problem.run]].filter(Boolean);
  detail.replaceChildren(
    element("h3", {}, nameOf(problem), about.length ? element("small", { class: "small" }, ` ${about.join(", ")}`) : null),
    element("p", { class: "question" }, problem.question),
    tabs(problem, answer),
    numbers(problem, answer),
    drawn ? drawn.node : element("p", { class: "notice" }, "No timeline of this answer is stored."),
    steps(answer, timeline),
  );
  redraw = drawn ? drawn.draw : () => {};
  redraw();
  linkStepsAndSpans();
}

function tabs(problem, answer) {
  const holder = element("div", { class: "tabs", role: "tablist", "aria-label": "Strategies" });
  for (const other of problem.answers) {
    const strategy = data.series[other.series].strategy;
    const speed = other.baseline ? "baseline" : other.speedup === null ? "" : `${short(other.speedup)}×`;
    holder.append(element("button", { type: "button", role: "tab", "aria-selected": other === answer, "data-strategy": strategy, onclick: () => choose(problem, strategy) },
      strategy, element("small", {}, [seconds(other.seconds), speed, other.correct === true ? "✓" : other.correct === false ? "✗" : ""].filter(Boolean).join(" · "))));
  }
  return holder;
}

function numbers(problem, answer) {
  const grade = answer.correct === true ? "right" : answer.correct === false ? "wrong" : "not graded";
  const given = [
    ["answer", `${answer.prediction ?? "none found"} (${grade})`],
    ["reference", problem.reference ?? "none"],
    ["tokens", answer.tokens],
    ["α step", short(answer.alpha_step)],
    ["α token", short(answer.alpha_token)],
    ["discarded tokens", `${answer.discarded_target_tokens} target, ${answer.discarded_draft_tokens} draft`],
    ["ended by", answer.finish],
  ];
  const holder = element("p", { class: "numbers" });
  for (const [name, value] of given) holder.append(element("span", {}, `${name} `, element("b", {}, value)));
  for (const reason of answer.failed_tries) holder.append(element("span", { class: "mark-wrong" }, `a try failed: ${reason}`));
  return holder;
}

function steps(answer, timeline) {
  const holder = element("ol", { class: "steps", "aria-label": "The answer, step by step" });
  answer.steps.forEach((step, place) => {
    const final = timeline?.finals.find((other) => other.step_index === place);
    const item = element("li", { class: `step ${step.origin}`, "data-step": place },
      element("div", { class: "who" }, element("b", {}, `${place + 1} ${step.origin}`), `${step.tokens} tokens`, final ? `, at ${seconds(final.at)}` : ""),
      element("div", {}, element("div", { class: "text" }, step.text.trim()), verdictLine(step)),
      ...tried(step, place, timeline));
    holder.append(item);
  });
  return holder;
}

function verdictLine({ origin, verdict }) {
  if (!verdict) return null;
  const replaced = origin === "target" && verdict.decision !== "accept";
  const parts = [replaced ? "about the draft that was here" : null, verdict.score === null ? null : `score ${short(verdict.score)}`, verdict.reason, verdict.seconds ? seconds(verdict.seconds) : null];
  return element("div", { class: "verdict" }, element("span", { class: `chip ${verdict.decision}` }, verdict.decision), parts.filter(Boolean).join(" · "));
}

// The other versions of a step that were written, each text once.
function tried(step, place, timeline) {
  if (!timeline) return [];
  const others = timeline.spans.filter((span) =>
    span.step_index === place && span.lane !== "verifier" && ["step", "answer"].includes(span.purpose) && span.state !== "kept" && span.text.trim() && span.text !== step.text);
  const seen = new Set();
  return others
    .filter((span) => !seen.has(span.lane + span.text) && seen.add(span.lane + span.text))
    .map((span) => element("div", { class: "tried" },
      element("div", { class: "tried-head" }, element("span", { class: `chip ${span.state}` }, STATE_WORDS[span.state]),
        [`by the ${span.lane}`, span.score === null ? null : `score ${short(span.score)}`, span.reason].filter(Boolean).join(" · ")),
      element("div", { class: `text ${span.state}-text` }, span.text.trim())));
}

// Pointing at a step highlights its spans and the reverse; a click scrolls to the step.
function linkStepsAndSpans() {
  const light = (place, on) => {
    for (const node of detail.querySelectorAll(`.span[data-step="${place}"], .step[data-step="${place}"]`)) node.classList.toggle("lit", on);
  };
  for (const item of detail.querySelectorAll(".step")) {
    item.addEventListener("pointerenter", () => light(item.dataset.step, true));
    item.addEventListener("pointerleave", () => light(item.dataset.step, false));
  }
  const timeline = detail.querySelector(".timelines");
  if (!timeline) return;
  const toStep = (node) => node?.dataset?.step && detail.querySelector(`.step[data-step="${node.dataset.step}"]`)?.scrollIntoView({ block: "nearest" });
  timeline.addEventListener("click", (event) => toStep(event.target.closest(".span")));
  timeline.addEventListener("keydown", (event) => { if (event.key === "Enter") toStep(document.activeElement); });
  for (const [kind, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) {
    timeline.addEventListener(kind, (event) => {
      const span = event.target.closest(".span");
      if (span) detail.querySelector(`.step[data-step="${span.dataset.step}"]`)?.classList.toggle("lit", on);
    });
  }
}

function walkList(event) {
  const move = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
  if (move === undefined) return;
  event.preventDefault();
  const items = [...list.querySelectorAll("[role=option]")];
  const here = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
  const next = items[Math.max(0, Math.min(items.length - 1, here + move))];
  if (next) choose(data.problems[Number(next.id.slice("problem-".length))]);
}

function themes() {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
}

async function start() {
  data = await readData();
  charts = data.charts[0];
  document.body.prepend(patterns());
  themes();
  seriesLegend();
  taskChoice();
  drawCharts();
  list.addEventListener("keydown", walkList);
  document.getElementById("search").addEventListener("input", fillList);
  document.getElementById("order").addEventListener("change", fillList);
  const found = fillList();
  if (found.length) choose(found[0]);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; drawCharts(); redraw(); }
  });
}

start();
