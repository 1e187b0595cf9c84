"use strict";
// The charts about all answers. A strategy has one colour, and a shape of its own for who cannot tell colours.

const SHAPES = [
  (x, y, r) => svg("circle", { cx: x, cy: y, r }),
  (x, y, r) => svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r }),
  (x, y, r) => svg("path", { d: `M${x} ${y - r * 1.25}L${x + r * 1.2} ${y + r}H${x - r * 1.2}Z` }),
  (x, y, r) => svg("path", { d: `M${x} ${y - r * 1.3}L${x + r * 1.3} ${y}L${x} ${y + r * 1.3}L${x - r * 1.3} ${y}Z` }),
  (x, y, r) => svg("path", { d: `M${x} ${y + r * 1.25}L${x + r * 1.2} ${y - r}H${x - r * 1.2}Z` }),
];
const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2"];
const severalRuns = data.runs.length > 1;

function colourOf(series) {
  return `var(--s${series.colour % 8})`;
}

function markerOf(series, x, y, radius) {
  const place = severalRuns ? series.run : series.colour;
  const marker = SHAPES[place % SHAPES.length](x, y, radius);
  marker.setAttribute("fill", colourOf(series));
  return marker;
}

function dashesOf(series) {
  return DASHES[(severalRuns ? series.run : series.colour) % DASHES.length];
}

function words(...lines) {
  return lines.map((line, place) => element("div", place ? { class: "soft" } : {}, line));
}

// As wide as its place on the page, so that letters keep their size on a narrow screen.
function frame(holder, height, margin, label) {
  const width = Math.min(760, Math.max(300, document.getElementById(holder).clientWidth || 560));
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  return { root, left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
}

function axes(box, { x, xTicks, xLabel, xFormat = short, y, yTicks, yLabel, yFormat = short }) {
  for (const value of yTicks) {
    box.root.append(
      svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      svg("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, yFormat(value)),
    );
  }
  box.root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  for (const value of xTicks) {
    box.root.append(svg("text", { x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, xFormat(value)));
  }
  box.root.append(
    svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 35, "text-anchor": "middle" }, xLabel),
    svg("text", { x: box.left - 44, y: box.top - 18 }, yLabel),
  );
}

function nothing(text) {
  return svg(
    "svg",
    { viewBox: "0 0 560 120", role: "img", "aria-label": text },
    svg("text", { class: "empty", x: 280, y: 64, "text-anchor": "middle" }, text),
  );
}

function frontier(lines) {
  const bySpeedup = lines.every((line) => line.speedup);
  // Few answers may have an interval that reaches 0, which a logarithmic axis does not.
  const fastest = Math.min(...lines.map((line) => line.seconds?.value || Infinity));
  const visible = (low) => (isNumber(low) ? Math.max(low, fastest / 4) : low);
  const horizontal = (line) => (bySpeedup ? line.speedup : line.seconds?.value && { ...line.seconds, low: visible(line.seconds.low) });
  const shown = lines.filter((line) => line.accuracy && horizontal(line));
  if (!shown.length) return nothing("No problem of this run has a reference answer.");
  const box = frame("chart-frontier", 330, { left: 48, right: 20, top: 34, bottom: 44 }, "Accuracy against speed");
  const lows = shown.map((line) => horizontal(line).low ?? horizontal(line).value);
  const highs = shown.map((line) => horizontal(line).high ?? horizontal(line).value);
  const [low, high] = [Math.min(...lows) * 0.93, Math.max(...highs) * 1.07];
  const bottom = Math.max(0, Math.min(...shown.map((line) => line.accuracy.low ?? line.accuracy.value)) - 0.05);
  // Seconds run backwards, so that faster is to the right in both.
  const x = bySpeedup ? linear(Math.min(low, 0.9), high, box.left, box.right) : logarithmic(low, high, box.right, box.left);
  const y = linear(bottom, 1.02, box.bottom, box.top);
  axes(box, {
    x, xTicks: bySpeedup ? ticks(Math.min(low, 0.9), high, box.right / 80) : logTicks(low, high),
    xLabel: bySpeedup ? "speed-up over the baseline" : "seconds per problem (faster to the right)",
    xFormat: (value) => (bySpeedup ? `${short(value)}×` : short(value)),
    y, yTicks: ticks(bottom, 1, 5), yLabel: "right answers", yFormat: (value) => `${Math.round(100 * value)} %`,
  });
  const names = [];
  for (const line of shown) {
    const series = data.series[line.series];
    const [place, accuracy] = [horizontal(line), line.accuracy];
    const [cx, cy, colour] = [x(place.value), y(accuracy.value), colourOf(series)];
    const group = svg("g", { tabindex: 0, role: "img", "aria-label": series.label });
    if (isNumber(accuracy.low)) {
      group.append(svg("line", { x1: cx, x2: cx, y1: y(accuracy.low), y2: y(accuracy.high), stroke: colour, "stroke-width": 1.5 }));
    }
    if (isNumber(place.low)) {
      group.append(svg("line", { x1: x(place.low), x2: x(place.high), y1: cy, y2: cy, stroke: colour, "stroke-width": 1.5 }));
    }
    group.append(markerOf(series, cx, cy, 6));
    explain(group, () => words(
      series.label,
      `${share(accuracy.value)} right (${share(accuracy.low)} to ${share(accuracy.high)})`,
      (bySpeedup ? `${short(place.value)}× as fast` : `${seconds(place.value)} a problem`)
        + (isNumber(place.low) ? ` (${short((bySpeedup ? line.speedup : line.seconds).low)} to ${short(place.high)})` : ""),
      `${line.answers} answers`,
    ));
    box.root.append(group);
    names.push({ x: cx, y: cy, text: series.label });
  }
  placeNames(box, names);
  return box.root;
}

// Names stand below their points; one that would cover another moves further down.
function placeNames(box, names) {
  const placed = [];
  for (const name of names.sort((one, other) => one.x - other.x)) {
    const half = name.text.length * 3.3;
    const x = Math.min(Math.max(name.x + 10, box.left), box.right - 2 * half);
    let y = name.y + 20;
    while (placed.some((other) => Math.abs(other.y - y) < 14 && x < other.end + 6 && other.start < x + 2 * half)) y += 14;
    placed.push({ start: x, end: x + 2 * half, y });
    box.root.append(svg("text", { class: "strong", x, y }, name.text));
  }
}

function latency(lines) {
  const shown = lines.filter((line) => line.latencies.length);
  const all = shown.flatMap((line) => line.latencies).filter((value) => value > 0);
  if (!all.length) return nothing("No answer was timed.");
  const box = frame("chart-latency", 330, { left: 48, right: 20, top: 34, bottom: 44 }, "Latency");
  const [low, high] = [Math.min(...all) * 0.9, Math.max(...all) * 1.1];
  const x = logarithmic(low, high, box.left, box.right);
  const y = linear(0, 1, box.bottom, box.top);
  axes(box, {
    x, xTicks: logTicks(low, high), xLabel: "seconds per answer",
    y, yTicks: [0, 0.25, 0.5, 0.75, 1], yLabel: "answers done", yFormat: (value) => `${100 * value} %`,
  });
  for (const line of shown) {
    const series = data.series[line.series];
    const values = line.latencies;
    let path = `M${x(values[0])} ${y(0)}`;
    values.forEach((value, place) => (path += `H${x(value)}V${y((place + 1) / values.length)}`));
    const median = values[Math.floor((values.length - 1) / 2)];
    const curve = svg("g", { tabindex: 0, role: "img", "aria-label": series.label },
      svg("path", { d: path, fill: "none", stroke: colourOf(series), "stroke-width": 2, "stroke-dasharray": dashesOf(series) }),
      svg("path", { d: path, fill: "none", stroke: "transparent", "stroke-width": 10 }),
      markerOf(series, x(median), y(0.5), 4.5));
    explain(curve, () => words(series.label, `median ${seconds(median)}`, `${seconds(values[0])} to ${seconds(values.at(-1))}`));
    box.root.append(curve);
  }
  return box.root;
}

// Dots with intervals over places in order; what both charts of acceptance are made of.
function dotted(holder, lines, { places, xLabel, label, empty }) {
  if (!places.length) return nothing(empty);
  const box = frame(holder, 300, { left: 48, right: 14, top: 34, bottom: 44 }, label);
  const room = (box.right - box.left) / places.length;
  const x = (place) => box.left + (place + 0.5) * room;
  const y = linear(0, 1.03, box.bottom, box.top);
  const every = Math.ceil(places.reduce((most, text) => Math.max(most, text.length), 1) * 6.6 / room);
  axes(box, {
    x, xTicks: places.map((_, place) => place).filter((place) => place % every === 0), xFormat: (place) => places[place],
    xLabel, y, yTicks: [0, 0.25, 0.5, 0.75, 1], yLabel: "drafts that stood", yFormat: (value) => `${100 * value} %`,
  });
  lines.forEach(({ series, dots }, number) => {
    const shift = (number - (lines.length - 1) / 2) * Math.min(12, room / (lines.length + 1));
    const path = dots.map((dot) => `${x(dot.place) + shift} ${y(dot.part / dot.whole)}`).join("L");
    box.root.append(svg("path", { d: `M${path}`, fill: "none", stroke: colourOf(series), "stroke-width": 1.5, "stroke-dasharray": dashesOf(series) }));
    const most = Math.max(...dots.map((dot) => dot.whole));
    for (const dot of dots) {
      const [cx, cy] = [x(dot.place) + shift, y(dot.part / dot.whole)];
      const group = svg("g", { tabindex: 0, role: "img", "aria-label": `${series.label}, ${places[dot.place]}` });
      group.append(svg("line", { x1: cx, x2: cx, y1: y(dot.low), y2: y(dot.high), stroke: colourOf(series), "stroke-opacity": 0.55 }));
      group.append(markerOf(series, cx, cy, 2.5 + 3 * Math.sqrt(dot.whole / most)));
      explain(group, () => words(`${series.label}, ${dot.title}`, `${dot.part} of ${dot.whole} stood: ${share(dot.part / dot.whole)}`, ...dot.more));
      box.root.append(group);
    }
  });
  return box.root;
}

// Wilson's 95 % interval of a share.
function wilson(part, whole) {
  const [z2, p] = [1.959964 ** 2, part / whole];
  const centre = (p + z2 / (2 * whole)) / (1 + z2 / whole);
  const half = (Math.sqrt(z2) / (1 + z2 / whole)) * Math.sqrt((p * (1 - p)) / whole + z2 / (4 * whole * whole));
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}

function bySteps(lines) {
  const shown = lines
    .map((line) => ({
      series: data.series[line.series],
      dots: line.steps
        .filter(([, accepted, rejected, unknown]) => accepted + rejected + unknown)
        .map(([place, accepted, rejected, unknown]) => {
          const whole = accepted + rejected + unknown;
          const [low, high] = wilson(accepted, whole);
          const more = [`${rejected} refused, ${unknown} left open`];
          return { place, part: accepted, whole, low, high, title: `step ${place + 1}`, more };
        }),
    }))
    .filter((line) => line.dots.length);
  const last = Math.max(-1, ...shown.flatMap((line) => line.dots.map((dot) => dot.place)));
  return dotted("chart-steps", shown, {
    places: Array.from({ length: last + 1 }, (_, place) => String(place + 1)), xLabel: "step of the answer",
    label: "Acceptance by step", empty: "No strategy of this run has its drafted steps judged.",
  });
}

function byDifficulty(lines) {
  const labels = [...new Set(lines.flatMap((line) => line.groups.map((group) => group.label)))];
  const shown = lines
    .map((line) => ({
      series: data.series[line.series],
      dots: line.groups
        .filter((group) => group.interval)
        .map((group) => ({
          place: labels.indexOf(group.label), part: group.accepted, whole: group.verdicts,
          low: group.interval[0], high: group.interval[1],
          title: group.detail ? `${group.label}: ${group.detail}` : group.label,
          more: [
            `${group.problems} problems, ${group.correct} of ${group.graded} answers right`,
            `speed-up ${short(group.speedup)}×, α token ${short(group.alpha_token)}`,
          ],
        })),
    }))
    .filter((line) => line.dots.length);
  return dotted("chart-groups", shown, {
    places: shown.length ? labels : [], xLabel: "from easy to hard", label: "Acceptance by difficulty",
    empty: labels.length ? "No strategy of this run has its drafted steps judged." : "Too few problems to tell easy from hard.",
  });
}

function histograms(lines) {
  const shown = lines.filter((line) => line.histogram.some(Boolean));
  if (!shown.length) return nothing("No target of this run had token drafts.");
  const whole = Math.max(300, document.getElementById("chart-histogram").clientWidth || 1150);
  const columns = Math.max(1, Math.min(shown.length, Math.floor(whole / 250)));
  const [width, height] = [Math.min(whole / columns, 420), 190];
  const rows = Math.ceil(shown.length / columns);
  const root = svg("svg", { width: width * columns, height: height * rows, viewBox: `0 0 ${width * columns} ${height * rows}`, role: "img", "aria-label": "Token acceptance" });
  shown.forEach((line, number) => {
    const series = data.series[line.series];
    const [left, top] = [(number % columns) * width + 16, Math.floor(number / columns) * height + 40];
    const [inner, deep] = [width - 52, height - 74];
    const most = Math.max(...line.histogram);
    const group = svg("g", {}, svg("text", { class: "strong", x: left, y: top - 24 }, series.label));
    line.histogram.forEach((count, bin) => {
      const tall = (count / most) * deep;
      const bar = svg("rect", { x: left + (bin * inner) / 10 + 1.5, y: top + deep - tall, width: inner / 10 - 3, height: tall, rx: 2, fill: colourOf(series) });
      explain(bar, () => words(`${series.label}: ${count} answers`, `${bin * 10} to ${bin * 10 + 10} % of the drafts confirmed`));
      group.append(bar);
      if (count) group.append(svg("text", { x: left + ((bin + 0.5) * inner) / 10, y: top + deep - tall - 4, "text-anchor": "middle" }, count));
    });
    group.append(svg("line", { class: "axis", x1: left, x2: left + inner, y1: top + deep, y2: top + deep }));
    for (const value of [0, 0.5, 1]) {
      group.append(svg("text", { x: left + value * inner, y: top + deep + 16, "text-anchor": "middle" }, `${100 * value} %`));
    }
    root.append(group);
  });
  return root;
}

let charts = data.charts[0];

function drawCharts() {
  const put = (name, chart) => document.getElementById(name).replaceChildren(chart);
  put("chart-frontier", frontier(charts.lines));
  put("chart-latency", latency(charts.lines));
  put("chart-steps", bySteps(charts.lines));
  put("chart-groups", byDifficulty(charts.lines));
  put("chart-histogram", histograms(charts.lines));
}

function seriesLegend() {
  const legend = document.getElementById("series-legend");
  for (const series of data.series) {
    const icon = svg("svg", { width: 30, height: 14, "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 30, y1: 7, y2: 7, stroke: colourOf(series), "stroke-width": 2, "stroke-dasharray": dashesOf(series) }),
      markerOf(series, 15, 7, 5));
    legend.append(element("span", {}, icon, series.label));
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
