"use strict";
// The charts about all answers, by Observable Plot. A strategy has one colour, one symbol and one dash pattern.

const SYMBOLS = ["circle", "square", "triangle", "diamond", "star"];
const DASHES = ["none", "6 3", "2 3", "8 3 2 3", "1 2"];
const SHARE_AXIS = { domain: [0, 1.02], grid: true, ticks: 5, tickFormat: (value) => String(Math.round(100 * value)) };

function styleOf(series) {
  const place = (data.runs.length > 1 ? series.run : series.colour) % SYMBOLS.length;
  return { colour: `var(--s${series.colour % 8})`, symbol: SYMBOLS[place], dashes: DASHES[place] };
}

// One tip for all series, at the nearest point.
function tipOf(points) {
  return Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: "text", maxRadius: 30 }));
}

// Plot adds a style element, which the page's policy forbids; page.css has those rules.
function plot(holder, label, options) {
  const width = Math.min(760, Math.max(300, document.getElementById(holder).clientWidth || 560));
  const chart = Plot.plot({ className: "plot", width, height: 320, marginLeft: 46, marginBottom: 40, ariaLabel: label, ...options });
  chart.querySelector("style")?.remove();
  return chart;
}

function nothing(text) {
  return element("p", { class: "empty" }, text);
}

function low(estimate) {
  return estimate.interval ? estimate.interval[0] : estimate.value;
}

function high(estimate) {
  return estimate.interval ? estimate.interval[1] : estimate.value;
}

function range(estimate, format) {
  return estimate.interval ? `${format(estimate.value)} (${format(low(estimate))} to ${format(high(estimate))})` : format(estimate.value);
}

function frontier(lines) {
  const bySpeedup = lines.every((line) => line.speedup);
  const shown = lines.filter((line) => line.accuracy && (bySpeedup || line.seconds?.value));
  if (!shown.length) return nothing("No problem of this run has a reference answer.");
  const fastest = Math.min(...shown.map((line) => line.seconds?.value || Infinity));
  const x = (line) => (bySpeedup ? line.speedup : line.seconds);
  // The interval of few answers may reach 0, which a logarithmic axis does not.
  const left = (line) => (bySpeedup ? low(x(line)) : Math.max(low(x(line)), fastest / 4));
  const bottom = Math.max(0, Math.min(...shown.map((line) => low(line.accuracy))) - 0.05);
  const points = shown.map((line) => ({ x: x(line).value, y: line.accuracy.value, text: [
    line.series.label,
    `${range(line.accuracy, percent)} right`,
    bySpeedup ? `${range(line.speedup, short)}× as fast` : `${range(line.seconds, seconds)} a problem`,
    `${line.answers} answers`,
  ].join("\n") }));
  const marks = shown.flatMap((line) => {
    const { colour, symbol } = styleOf(line.series);
    return [
      Plot.ruleX([line], { x: (d) => x(d).value, y1: (d) => low(d.accuracy), y2: (d) => high(d.accuracy), stroke: colour, strokeWidth: 1.5 }),
      Plot.ruleY([line], { y: (d) => d.accuracy.value, x1: left, x2: (d) => high(x(d)), stroke: colour, strokeWidth: 1.5 }),
      Plot.dot([line], { x: (d) => x(d).value, y: (d) => d.accuracy.value, fill: colour, r: 6, symbol }),
    ];
  });
  return plot("chart-frontier", "Accuracy against speed", {
    // Faster is to the right on both axes.
    x: bySpeedup
      ? { label: "speed-up over the baseline →", nice: true, tickFormat: (value) => `${short(value)}×` }
      : { label: "seconds per problem (faster to the right) →", labelArrow: false, type: "log", reverse: true, ticks: 5, tickFormat: short },
    y: { ...SHARE_AXIS, label: "right answers (%)", domain: [bottom, 1.02] },
    marks: [bySpeedup ? Plot.ruleX([1], { stroke: "var(--line)" }) : null, marks, tipOf(points)],
  });
}

function latency(lines) {
  const shown = lines.filter((line) => line.latencies.some((value) => value > 0));
  if (!shown.length) return nothing("No answer was timed.");
  const medians = [];
  const marks = shown.flatMap((line) => {
    const { colour, symbol, dashes } = styleOf(line.series);
    const values = line.latencies;
    const steps = [{ value: values[0], done: 0 }, ...values.map((value, place) => ({ value, done: (place + 1) / values.length }))];
    const median = values[Math.floor((values.length - 1) / 2)];
    const text = `${line.series.label}\nmedian ${seconds(median)}\n${seconds(values[0])} to ${seconds(values.at(-1))}`;
    medians.push({ x: median, y: 0.5, text });
    return [
      Plot.line(steps, { x: "value", y: "done", curve: "step-after", stroke: colour, strokeWidth: 2, strokeDasharray: dashes }),
      Plot.dot([median], { x: (value) => value, y: 0.5, fill: colour, r: 4.5, symbol }),
    ];
  });
  return plot("chart-latency", "Latency", {
    x: { type: "log", label: "seconds per answer →", labelArrow: false, ticks: 5, tickFormat: short },
    y: { ...SHARE_AXIS, label: "finished answers (%)" },
    marks: [marks, tipOf(medians)],
  });
}

// A larger dot has more verdicts.
function bySteps(lines) {
  const shown = lines.filter((line) => line.steps.length);
  if (!shown.length) return nothing("No strategy of this run has its drafted steps judged.");
  const last = Math.max(...shown.flatMap(({ steps }) => steps.map((step) => step.place)));
  const room = document.getElementById("chart-steps").clientWidth / last;
  const marks = shown.flatMap(({ series, steps }, number) => {
    const { colour, symbol, dashes } = styleOf(series);
    const dx = (number - (shown.length - 1) / 2) * Math.min(12, room / (shown.length + 1));
    const most = Math.max(...steps.map((step) => step.verdicts));
    return [
      Plot.line(steps, { x: "place", y: (d) => d.share.value, dx, stroke: colour, strokeDasharray: dashes }),
      Plot.ruleX(steps, { x: "place", y1: (d) => low(d.share), y2: (d) => high(d.share), dx, stroke: colour, strokeOpacity: 0.55 }),
      Plot.dot(steps, { x: "place", y: (d) => d.share.value, dx, fill: colour, symbol, r: (d) => 2.5 + 3 * Math.sqrt(d.verdicts / most) }),
    ];
  });
  const points = shown.flatMap(({ series, steps }) => steps.map((step) => ({ x: step.place, y: step.share.value, text: [
    `${series.label}, step ${step.place}`,
    `${step.num_accepted} of ${step.verdicts} accepted: ${percent(step.share.value)}`,
    `${step.num_rejected} rejected, ${step.num_unknown} undecided`,
  ].join("\n") })));
  return plot("chart-steps", "Acceptance by step", {
    x: { label: "step of the answer →", labelArrow: false, domain: [0.5, last + 0.5], ticks: Math.min(last, 20), tickFormat: (value) => (Number.isInteger(value) ? String(value) : "") },
    y: { ...SHARE_AXIS, label: "accepted drafts (%)" },
    r: { type: "identity" },
    marks: [marks, tipOf(points)],
  });
}

let charts = null;

function drawCharts() {
  const draw = { frontier, latency, steps: bySteps };
  for (const [name, chart] of Object.entries(draw)) document.getElementById(`chart-${name}`).replaceChildren(chart(charts.lines));
}

function seriesLegend() {
  const legend = document.getElementById("series-legend");
  for (const series of data.series) {
    const { colour, symbol, dashes } = styleOf(series);
    const shape = d3.symbol(d3[`symbol${symbol[0].toUpperCase()}${symbol.slice(1)}`], 70)();
    legend.append(element("span", {}, svg("svg", { width: 30, height: 14, "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 30, y1: 7, y2: 7, stroke: colour, "stroke-width": 2, "stroke-dasharray": dashes }),
      svg("path", { d: shape, transform: "translate(15,7)", fill: colour })), series.label));
  }
}

function taskChoice() {
  const holder = document.getElementById("chart-task");
  if (data.charts.length < 2) return;
  holder.hidden = false;
  const choice = element("select", { onchange: () => { charts = data.charts[choice.value]; drawCharts(); } });
  data.charts.forEach(({ task }, place) => choice.append(element("option", { value: place }, task === "all" ? "all tasks" : task)));
  holder.append(element("label", {}, "Task ", choice));
}
