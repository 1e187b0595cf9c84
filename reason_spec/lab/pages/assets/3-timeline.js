"use strict";
// One answer over time: a lane for each model, the cache and the verifier, with the baseline on the same axis.

const STATE_WORDS = {
  kept: "kept",
  matched: "the target's own, and an equivalent draft was kept",
  rejected: "rejected",
  undecided: "undecided by the verdict",
  unused: "finished and not used",
  cancelled: "cancelled",
};
const PURPOSE_WORDS = { step: "step", answer: "step of a whole answer", ahead: "tokens ahead in step", token: "a mended token in step" };
const DECISION_WORDS = { kept: "accepted" };
const LANE_ORDER = ["draft", "cache", "target", "verifier"];
const [ROW, GAP, LANE_GAP, HEAD, AXIS] = [18, 3, 9, 26, 24];

function patterns() {
  const line = (d, width = 1.6) => svg("path", { d, fill: "none", "stroke-width": width });
  const dot = (cx, cy) => svg("circle", { cx, cy, r: 1.1 });
  const marks = {
    rejected: [line("M-1 1L1 -1M0 7L7 0M6 8L8 6", 2.2)],
    matched: [line("M0 1.5H7M0 5H7", 1.8)],
    undecided: [dot(2, 2), dot(5.5, 5.5)],
    unused: [line("M1.5 0V7M5 0V7", 1.2)],
    cancelled: [line("M0 0L7 7M7 0L0 7", 0.9)],
  };
  return svg("svg", { class: "patterns", width: 0, height: 0, "aria-hidden": "true" }, svg("defs", {}, ...Object.entries(marks).map(([state, parts]) =>
    svg("pattern", { id: `fill-${state}`, class: `pattern ${state}`, width: 7, height: 7, patternUnits: "userSpaceOnUse" },
      svg("rect", { class: "pattern-back", width: 7, height: 7 }), ...parts))));
}

function stateLegend(parts) {
  const states = new Set(parts.flatMap(({ timeline }) => timeline.spans.map((span) => span.state)));
  const origins = new Set(parts.flatMap(({ timeline }) => timeline.finals.map((final) => final.origin)));
  const icon = (width, ...shapes) => svg("svg", { width, height: 14, "aria-hidden": "true" }, ...shapes);
  return element("div", { class: "legend" },
    ...Object.keys(STATE_WORDS).filter((state) => states.has(state)).map((state) =>
      element("span", {}, icon(24, svg("rect", { class: `span ${state}`, x: 1, y: 1, width: 22, height: 12, rx: 2 })), STATE_WORDS[state])),
    ...[...origins].map((origin) =>
      element("span", {}, icon(12, svg("circle", { class: `final-dot o-${origin}`, cx: 6, cy: 7, r: 5 })), `final, by the ${writer(origin)}`)));
}

function writer(origin) {
  return origin === "inserted" ? "strategy" : origin;
}

// The top of each lane in pixels; lanes without work are left out.
function laneLayout(timeline) {
  const lanes = [];
  let top = HEAD;
  for (const lane of LANE_ORDER.filter((name) => timeline.rows[name])) {
    const height = timeline.rows[lane] * (ROW + GAP) - GAP;
    lanes.push({ lane, top, height });
    top += height + LANE_GAP;
  }
  return { lanes, bottom: top - LANE_GAP + 4 };
}

function laneNames(layout, width) {
  const name = (text, y, kind = null) => svg("text", { class: kind, x: width - 8, y, "text-anchor": "end" }, text);
  return svg("svg", { class: "lane-names", width, height: layout.bottom + AXIS, "aria-hidden": "true" }, name("final", 16),
    ...layout.lanes.map(({ lane, top, height }) => name(lane, top + Math.min(height, ROW) / 2 + 4, "lane-name")));
}

function spanTip(span) {
  const title = span.lane === "verifier"
    ? `verdict about step ${span.step_index + 1}: ${DECISION_WORDS[span.state] ?? span.state}`
    : `${span.lane}, ${PURPOSE_WORDS[span.purpose]} ${span.step_index + 1}: ${STATE_WORDS[span.state]}`;
  const times = `${seconds(span.start)} to ${seconds(span.end)}, ${seconds(span.end - span.start)}`;
  const judged = [span.score === null ? "" : `score ${short(span.score)}`, span.reason].filter(Boolean).join(" ");
  return [
    element("b", {}, title),
    element("div", { class: "soft" }, times + (span.num_tokens ? `, ${span.num_tokens} tokens` : "")),
    judged && element("div", {}, judged),
    span.text && element("div", { class: "text" }, span.text.trim()),
  ];
}

function drawSpan(span, x, top) {
  const width = Math.max(x(span.end) - x(span.start) - 1, 2.5);
  // Work that brings only some tokens is drawn lower than work that brings a step.
  const small = span.purpose === "ahead" || span.purpose === "token";
  const height = small ? ROW / 2 : ROW;
  const y = top + span.row * (ROW + GAP) + (ROW - height) / 2;
  const node = svg("rect", {
    class: `span ${span.state}`, x: x(span.start), y, width, height, rx: small ? 2 : 3, tabindex: -1, role: "img",
    "data-step": span.step_index, "data-lane": span.lane, "data-state": span.state, "data-work": span.work,
    "aria-label": `${span.lane}, step ${span.step_index + 1}, ${STATE_WORDS[span.state]}, ${seconds(span.start)} to ${seconds(span.end)}`,
  });
  const label = width > 17 && !small && span.state === "kept" &&
    svg("text", { class: "span-label", x: x(span.start) + width / 2, y: y + ROW / 2 + 4, "text-anchor": "middle" }, span.step_index + 1);
  return [explain(node, () => spanTip(span)), label];
}

function drawFinal(final, x, bottom) {
  const dot = svg("circle", { class: `final-dot o-${final.origin}`, cx: x(final.at), cy: 12, r: 5, "data-step": final.step_index });
  const text = () => [element("div", {}, `step ${final.step_index + 1} is final`), element("div", { class: "soft" }, `by the ${writer(final.origin)}, at ${seconds(final.at)}`)];
  return [svg("line", { class: "final-line", x1: x(final.at), x2: x(final.at), y1: 17, y2: bottom }), explain(dot, text)];
}

function drawLanes({ timeline, label }, layout, x, width) {
  const tops = Object.fromEntries(layout.lanes.map(({ lane, top }) => [lane, top]));
  const spans = timeline.spans.map((span) => drawSpan(span, x, tops[span.lane]));
  const root = svg("svg", { class: "lanes", width, height: layout.bottom + AXIS, role: "group", "aria-label": label },
    ...layout.lanes.map(({ top, height }) => svg("rect", { class: "lane-back", x: 0, y: top - 3, width, height: height + 6 })),
    ...x.ticks(Math.max(3, width / 90)).flatMap((value) => [
      svg("line", { class: "gridline", x1: x(value), x2: x(value), y1: HEAD - 6, y2: layout.bottom }),
      svg("text", { x: x(value), y: layout.bottom + 15, "text-anchor": value === 0 ? "start" : "middle" }, value === 0 ? "0 s" : short(value)),
    ]),
    ...timeline.finals.flatMap((final) => drawFinal(final, x, layout.bottom)),
    ...spans.flat());
  walkable(root, spans.map(([rect]) => rect));
  return root;
}

// One stop for the tab key; the arrow keys go from span to span.
function walkable(root, rects) {
  rects[0]?.setAttribute("tabindex", 0);
  root.addEventListener("keydown", (event) => {
    const here = rects.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (here < 0 || !step) return;
    event.preventDefault();
    rects[Math.max(0, Math.min(rects.length - 1, here + step))].focus();
  });
}

// The timelines of an answer and of the baseline, with buttons to zoom.
function timelines(parts) {
  const shown = parts.filter((part) => part.timeline);
  if (!shown.length) return null;
  const longest = Math.max(...shown.map((part) => part.timeline.seconds), 1e-6);
  const holder = element("div", { class: "timelines" });
  let zoom = 1;
  const draw = () => {
    const names = window.innerWidth < 600 ? 62 : 74;
    const width = Math.max(240, (holder.clientWidth || 800) - names - 4) * zoom;
    const x = d3.scaleLinear([0, longest], [4, width - 14]);
    holder.replaceChildren(...shown.map((part) => {
      const layout = laneLayout(part.timeline);
      const scroller = element("div", { class: "timeline", onscroll: (event) => scrollTogether(holder, event.target) }, drawLanes(part, layout, x, width));
      return element("div", {}, element("p", { class: "small" }, part.label), element("div", { class: "lane-grid" }, laneNames(layout, names), scroller));
    }));
  };
  const button = (text, label, change) => element("button", { type: "button", "aria-label": label, onclick: () => { zoom = change(); draw(); } }, text);
  const tools = element("div", { class: "controls" }, element("span", { class: "seg" },
    button("−", "Zoom out", () => Math.max(1, zoom / 2)), button("fit", "Show all", () => 1), button("+", "Zoom in", () => Math.min(64, zoom * 2))),
    stateLegend(shown));
  return { node: element("div", {}, tools, holder), draw };
}

function scrollTogether(holder, moved) {
  for (const other of holder.querySelectorAll(".timeline")) {
    if (other !== moved && other.scrollLeft !== moved.scrollLeft) other.scrollLeft = moved.scrollLeft;
  }
}
