"use strict";
// One answer over time: a lane for each model, the cache and the verifier, and the baseline below on the same axis.

const STATE_WORDS = {
  stands: "stands",
  compared: "the target's own, and the draft stands",
  refused: "refused",
  open: "left open by the verdict",
  unused: "finished and not used",
  cancelled: "cancelled",
};
const PURPOSE_WORDS = { step: "step", answer: "step of a whole answer", ahead: "tokens ahead", token: "a mended token", verdict: "verdict" };
const DECISION_WORDS = { stands: "accepted", refused: "refused", open: "left open", cancelled: "cancelled" };
const LANE_WORDS = { draft: "draft", target: "target", cache: "cache", verifier: "verifier" };
const LANE_ORDER = ["draft", "cache", "target", "verifier"];
const [ROW, GAP, LANE_GAP, HEAD, AXIS] = [18, 3, 9, 26, 24];

// A list of values as an object with the names of its fields, its places as names and its texts as texts.
function readSpan(values) {
  const span = Object.fromEntries(data.fields.span.map((name, place) => [name, values[place]]));
  return {
    ...span,
    lane: data.names.lanes[span.lane],
    purpose: data.names.purposes[span.purpose],
    state: data.names.states[span.state],
    text: data.texts[span.text],
    reason: data.texts[span.reason],
  };
}

function readTimeline(timeline) {
  if (!timeline) return null;
  return {
    seconds: timeline.seconds,
    rows: Object.fromEntries(data.names.lanes.map((lane, place) => [lane, timeline.rows[place]])),
    spans: timeline.spans.map(readSpan),
    finals: timeline.finals.map(([at, step, origin]) => ({ at, step, origin: data.names.origins[origin] })),
  };
}

function patterns() {
  const pattern = (state, ...marks) =>
    svg("pattern", { id: `fill-${state}`, width: 7, height: 7, patternUnits: "userSpaceOnUse" },
      svg("rect", { class: "pattern-back", width: 7, height: 7 }), ...marks);
  const line = (state, d, width = 1.6) => svg("path", { class: `pattern-${state}`, d, fill: "none", "stroke-width": width });
  return svg("svg", { class: "patterns", width: 0, height: 0, "aria-hidden": "true" }, svg("defs", {},
    pattern("refused", line("refused", "M-1 1L1 -1M0 7L7 0M6 8L8 6", 2.2)),
    pattern("compared", line("compared", "M0 1.5H7M0 5H7", 1.8)),
    pattern("open", svg("circle", { class: "pattern-open", cx: 2, cy: 2, r: 1.3 }), svg("circle", { class: "pattern-open", cx: 5.5, cy: 5.5, r: 1.3 })),
    pattern("unused", line("unused", "M1.5 0V7M5 0V7", 1.2)),
    pattern("cancelled", line("cancelled", "M0 0L7 7M7 0L0 7", 0.9))));
}

function stateLegend(states, origins) {
  const legend = element("div", { class: "legend" });
  for (const [state, text] of Object.entries(STATE_WORDS)) {
    if (!states.has(state)) continue;
    legend.append(element("span", {},
      svg("svg", { width: 24, height: 14, "aria-hidden": "true" }, svg("rect", { class: `span ${state}`, x: 1, y: 1, width: 22, height: 12, rx: 2 })), text));
  }
  for (const origin of data.names.origins.filter((name) => origins.has(name))) {
    legend.append(element("span", {},
      svg("svg", { width: 12, height: 14, "aria-hidden": "true" }, svg("circle", { class: `final-dot o-${origin}`, cx: 6, cy: 7, r: 5 })), `final, by the ${origin === "inserted" ? "strategy" : origin}`));
  }
  return legend;
}

// Where each lane begins, in pixels from the top; lanes without work are left out.
function laneLayout(timeline) {
  const lanes = [];
  let top = HEAD;
  for (const lane of LANE_ORDER) {
    const rows = timeline.rows[lane];
    if (!rows) continue;
    lanes.push({ lane, top, height: rows * (ROW + GAP) - GAP });
    top += rows * (ROW + GAP) - GAP + LANE_GAP;
  }
  return { lanes, bottom: top - LANE_GAP + 4 };
}

function laneNames(layout, width) {
  const root = svg("svg", { class: "lane-names", width, height: layout.bottom + AXIS, "aria-hidden": "true" });
  root.append(svg("text", { x: width - 8, y: 16, "text-anchor": "end" }, "final"));
  for (const { lane, top, height } of layout.lanes) {
    root.append(svg("text", { class: "lane-name", x: width - 8, y: top + Math.min(height, ROW) / 2 + 4, "text-anchor": "end" }, LANE_WORDS[lane]));
  }
  return root;
}

function spanTip(span) {
  const verdict = span.lane === "verifier";
  const title = verdict
    ? `verdict about step ${span.step + 1}: ${DECISION_WORDS[span.state] ?? span.state}`
    : `${LANE_WORDS[span.lane]}, ${PURPOSE_WORDS[span.purpose]} ${span.purpose === "ahead" ? `in step ${span.step + 1}` : span.step + 1}: ${STATE_WORDS[span.state]}`;
  const times = `${seconds(span.start)} to ${seconds(span.end)}, ${seconds(span.end - span.start)}`;
  const tokens = span.tokens ? `, ${span.tokens} tokens` : "";
  const judged = span.reason || span.score !== null ? `${span.score === null ? "" : `score ${short(span.score)} `}${span.reason}` : null;
  return [
    element("b", {}, title),
    element("div", { class: "soft" }, times + tokens),
    judged && element("div", {}, judged),
    span.text && element("div", { class: "text" }, span.text.trim()),
  ].filter(Boolean);
}

function drawSpan(span, x, top) {
  const [left, right] = [x(span.start), x(span.end)];
  const wide = Math.max(right - left - 1, 2.5);
  // What only brings some tokens is drawn lower than what brings a step.
  const small = span.purpose === "ahead" || span.purpose === "token";
  const high = small ? ROW / 2 : ROW;
  const y = top + span.row * (ROW + GAP) + (ROW - high) / 2;
  const node = svg("rect", {
    class: `span ${span.state}`, x: left, y, width: wide, height: high, rx: small ? 2 : 3, tabindex: -1, role: "img",
    "data-step": span.step, "data-lane": span.lane, "data-state": span.state, "data-work": span.work,
    "aria-label": `${span.lane}, step ${span.step + 1}, ${STATE_WORDS[span.state]}, ${seconds(span.start)} to ${seconds(span.end)}`,
  });
  const label = wide > 17 && !small && span.state === "stands" &&
    svg("text", { class: "span-label", x: left + wide / 2, y: y + ROW / 2 + 4, "text-anchor": "middle" }, span.step + 1);
  return [explain(node, () => spanTip(span)), label];
}

function drawLanes(timeline, layout, x, width, label, ticksShown) {
  const root = svg("svg", { class: "lanes", width, height: layout.bottom + AXIS, role: "group", "aria-label": label });
  for (const { top, height } of layout.lanes) {
    root.append(svg("rect", { class: "lane-back", x: 0, y: top - 3, width, height: height + 6 }));
  }
  for (const value of ticksShown) {
    root.append(
      svg("line", { class: "gridline", x1: x(value), x2: x(value), y1: HEAD - 6, y2: layout.bottom }),
      svg("text", { x: x(value), y: layout.bottom + 15, "text-anchor": value === 0 ? "start" : "middle" }, value === 0 ? "0 s" : short(value)),
    );
  }
  for (const final of timeline.finals) {
    const dot = svg("circle", { class: `final-dot o-${final.origin}`, cx: x(final.at), cy: 12, r: 5, "data-step": final.step });
    explain(dot, () => words(`step ${final.step + 1} is final`, `by the ${final.origin === "inserted" ? "strategy itself" : final.origin}, at ${seconds(final.at)}`));
    root.append(svg("line", { class: "final-line", x1: x(final.at), x2: x(final.at), y1: 17, y2: layout.bottom }), dot);
  }
  const tops = Object.fromEntries(layout.lanes.map(({ lane, top }) => [lane, top]));
  const rects = [];
  for (const span of timeline.spans) {
    const [rect, text] = drawSpan(span, x, tops[span.lane]);
    root.append(rect);
    if (text) root.append(text);
    rects.push(rect);
  }
  walkable(root, rects);
  return root;
}

// One stop for the tab key; the arrow keys go from span to span.
function walkable(root, rects) {
  if (!rects.length) return;
  rects[0].setAttribute("tabindex", 0);
  root.addEventListener("keydown", (event) => {
    const here = rects.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (here < 0 || !step) return;
    event.preventDefault();
    rects[Math.max(0, Math.min(rects.length - 1, here + step))].focus();
  });
}

// The timelines of an answer and of the baseline, with buttons to look closer.
function timelines(parts) {
  const shown = parts.filter((part) => part.timeline);
  if (!shown.length) return null;
  const longest = Math.max(...shown.map((part) => part.timeline.seconds), 1e-6);
  const holder = element("div", { class: "timelines" });
  let zoom = 1;
  const draw = () => {
    const names = window.innerWidth < 600 ? 62 : 74;
    const room = Math.max(240, (holder.clientWidth || 800) - names - 4);
    const width = room * zoom;
    const x = linear(0, longest, 4, width - 14);
    const marks = ticks(0, longest, Math.max(3, Math.floor(width / 90)));
    holder.replaceChildren(...shown.map((part) => {
      const layout = laneLayout(part.timeline);
      const scroller = element("div", { class: "timeline", onscroll: (event) => together(holder, event.target) },
        drawLanes(part.timeline, layout, x, width, part.label, marks));
      return element("div", {}, element("p", { class: "small" }, part.label),
        element("div", { class: "lane-grid" }, laneNames(layout, names), scroller));
    }));
  };
  const button = (text, label, change) => element("button", { type: "button", "aria-label": label, onclick: () => { zoom = change(); draw(); } }, text);
  const states = new Set(shown.flatMap((part) => part.timeline.spans.map((span) => span.state)));
  const tools = element("div", { class: "controls" }, element("span", { class: "seg" },
    button("−", "Look from further away", () => Math.max(1, zoom / 2)), button("fit", "Show all", () => 1), button("+", "Look closer", () => Math.min(64, zoom * 2))),
    stateLegend(states, new Set(shown.flatMap((part) => part.timeline.finals.map((final) => final.origin)))));
  return { node: element("div", {}, tools, holder), draw };
}

function together(holder, moved) {
  for (const other of holder.querySelectorAll(".timeline")) {
    if (other !== moved && other.scrollLeft !== moved.scrollLeft) other.scrollLeft = moved.scrollLeft;
  }
}
