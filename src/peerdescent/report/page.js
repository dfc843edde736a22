"use strict";

// Escape a label: Plotly reads labels as a subset of HTML, and as templates.
const plain = text => text.replace(/[&<>{]/g, letter => `&#${letter.charCodeAt(0)};`);

// A long name in several lines, broken after commas if possible.
const wrapped = text => text.match(/.{1,40}(?:,|\s|$)|.{1,40}/gsu)?.map(plain).join("<br>") ?? "";

// The line of a group: the mean, and the band from low to high, at the points x.
function lineOf(group, index, across, up) {
  const line = group.lines[across], values = line?.y[up];
  if (!values) return {group, index, x: [], mid: [], low: [], high: []};
  return {group, index, x: line.x, mid: values.mid, low: values.low || values.mid, high: values.high || values.mid};
}

// The limits of the vertical axis for Plotly, which takes logarithms for a log axis. Diverged runs are ignored. On a
// linear axis, a quantity that should fall is shown no further above its start than the best is below it.
function range(lines, log, falls) {
  const good = lines.filter(line => !line.group.diverged), kept = good.length ? good : lines;
  const usable = v => v !== null && (!log || v > 0);
  let low = Infinity, high = -Infinity, start = -Infinity;
  for (const line of kept) {
    for (const v of [...line.low, ...line.high].filter(usable)) {
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
    if (line.mid.length && line.mid[0] !== null) start = Math.max(start, line.mid[0]);
  }
  if (low > high) return null;
  if (log) [low, high] = [Math.log10(low), Math.log10(high)];
  else if (falls && start > low) high = Math.min(high, 2 * start - low);
  const margin = 0.05 * (high - low) || 0.05 * Math.abs(low) || 0.5;
  return [low - margin, high + margin];
}

// The band around a line as a filled outline; a log axis cannot show values that are not above zero.
function band(line, log) {
  const known = line.x.map((_, k) => k).filter(k => line.low[k] !== null && (!log || line.high[k] > 0));
  const floor = Math.min(...line.mid.filter(v => v > 0), ...line.low.filter(v => v > 0));
  const low = k => log && line.low[k] <= 0 ? floor : line.low[k];
  const back = [...known].reverse();
  return {
    x: [...known, ...back].map(k => line.x[k]), y: [...known.map(k => line.high[k]), ...back.map(low)],
    uid: "band" + line.index, mode: "none", fill: "toself", fillcolor: line.group.colour + "2b",
    hoverinfo: "skip",
  };
}

// A cross at the last point of a line, or at the upper edge if that point is above the limits.
function end(line, limits, log) {
  const last = line.mid.findLastIndex(v => v !== null && (!log || v > 0));
  if (last < 0) return [];
  const top = limits ? (log ? 10 ** limits[1] : limits[1]) : Infinity;
  return [{
    uid: "end" + line.index, mode: "markers", cliponaxis: false,
    x: [line.x[last]], y: [Math.min(line.mid[last], top)],
    marker: {symbol: "x", size: 10, color: line.group.colour}, name: wrapped(line.group.label),
    hovertemplate: "%{fullData.name}<br>diverged<extra></extra>",
  }];
}

// What a log axis cannot show: the names of lines that are nowhere above zero.
function unseen(lines, log) {
  const hidden = log ? lines.filter(line => line.x.length && !line.mid.some(v => v > 0)) : [];
  const zero = hidden.filter(line => line.low.every(v => v === null || v === 0));
  const below = hidden.filter(line => !zero.includes(line));
  const said = (what, some) => some.length ? [`${what}: ${some.map(line => line.group.label).join(", ")}`] : [];
  return [...said("0", zero), ...said("not above 0", below)];
}

// The cells of a heat map with the parameter `up` in rows. Each pair is stored once, with the first parameter in rows.
function cellsOf(sweep, across, up) {
  const [first, second] = [across, up].sort((a, b) => a - b), stored = sweep.cells[first + "," + second];
  return up === first ? stored : stored[0].map((_, column) => stored.map(row => row[column]));
}

// The limits of the colour scale, as in figures: it ends at the best plus three times the median's distance from it, so
// that large losses do not hide small differences.
function shades(cells) {
  const values = cells.flat().filter(v => typeof v === "number").sort((a, b) => a - b), half = (values.length - 1) / 2;
  const [least, highest] = [values[0], values.at(-1)], median = (values[Math.floor(half)] + values[Math.ceil(half)]) / 2;
  const most = least + 3 * (median - least);
  return [least, least < most && most < highest ? most : highest];
}

function show() {
  const find = id => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  // The buttons are listed, since one of Plotly's default buttons uploads the data.
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d"]];
  const config = {displaylogo: false, plotlyServerURL: "", modeBarButtons: buttons};
  const axis = (title, more) => ({
    title: {text: plain(title), standoff: 12}, gridcolor: "#e8ecef", linecolor: "#9aa4ae", zeroline: false,
    showline: true, ticks: "outside", tickcolor: "#9aa4ae", automargin: true, exponentformat: "power", ...more,
  });
  const layout = more => ({
    font: {family: "system-ui, 'Segoe UI', Roboto, sans-serif", size: 13, color: "#1d2733"}, showlegend: false,
    margin: {l: 56, r: 16, t: 36, b: 50}, paper_bgcolor: "#fff", plot_bgcolor: "#fff", hovermode: "closest",
    modebar: {bgcolor: "rgba(0,0,0,0)", color: "#9aa4ae", activecolor: "#0072b2"},
    hoverlabel: {namelength: -1, bgcolor: "#fff", font: {color: "#1d2733"}}, ...more,
  });

  function curves() {
    const across = find("across"), up = find("up"), scale = find("scale"), problem = find("problem");
    let shown;
    const current = () => data.groups.filter(group => !problem || group.problem === problem.value);

    function draw() {
      const {title, log, falls} = data.quantities[up.value];
      const lines = current().filter(group => !group.hidden)
        .map(group => lineOf(group, data.groups.indexOf(group), across.value, up.value));
      const limits = range(lines, log, falls), furthest = Math.max(0, ...lines.flatMap(line => line.x)) || 1;
      const traces = [
        ...lines.filter(line => line.low !== line.mid).map(line => band(line, log)),
        ...lines.map(line => ({
          x: line.x, y: line.mid, mode: "lines", name: wrapped(line.group.label), uid: "line" + line.index,
          line: {color: line.group.colour, dash: line.group.dash || "solid", width: 2.2},
          hovertemplate: "<b>%{fullData.name}</b><br>%{xaxis.title.text} %{x:.6~g}<br>%{y:.6~g}<extra></extra>",
        })),
        ...lines.filter(line => line.group.diverged).flatMap(line => end(line, limits, log)),
      ];
      const notes = unseen(lines, log).map(wrapped);
      scale.setAttribute("aria-pressed", log);
      // Keep the zoom if only the selection of lines has changed.
      const view = [across.value, up.value, log, problem && problem.value].join(), same = view === shown;
      shown = view;
      Plotly[same ? "react" : "newPlot"]("curves", traces, layout({
        uirevision: view,
        xaxis: axis(data.axes[across.value].title,
                    {range: [-0.02 * furthest, 1.02 * furthest],
                     ...(across.value === "bytes" && {tickformat: "~s", ticksuffix: "B"})}),
        yaxis: axis(title, {type: log ? "log" : "linear", ...(limits ? {range: limits} : {autorange: true}),
                            ...(notes.length && !limits && {showticklabels: false})}),
        annotations: notes.length ? [{
          text: notes.join("<br>"), xref: "paper", yref: "paper", x: 0.01, y: 0.02, xanchor: "left", yanchor: "bottom",
          align: "left", showarrow: false, bgcolor: "rgba(255,255,255,0.8)", font: {color: "#5b6673"},
        }] : [],
      }), {...config, doubleClick: false});
      if (!same) find("curves").on("plotly_doubleclick", whole);
    }

    // Plotly's own reset would restore the first drawing, which may have had other axes.
    function whole() {
      shown = null;
      draw();
    }

    function legend() {
      const list = find("legend");
      list.replaceChildren(...current().map(group => {
        const button = document.createElement("button"), item = document.createElement("li");
        const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        const stroke = document.createElementNS("http://www.w3.org/2000/svg", "line");
        for (const [name, value] of Object.entries({width: 34, height: 10, "aria-hidden": true}))
          swatch.setAttribute(name, value);
        for (const [name, value] of Object.entries({x1: 0, x2: 34, y1: 5, y2: 5, stroke: group.colour,
                                                    "stroke-width": 2.5, "stroke-dasharray": group.dash || "none"}))
          stroke.setAttribute(name, value);
        swatch.append(stroke);
        button.type = "button";
        const name = document.createElement("span"), label = group.label + (group.diverged ? " (diverged)" : "");
        for (const part of label.split(/(?<=,)/)) name.append(part, document.createElement("wbr"));
        button.append(swatch, name);
        button.setAttribute("aria-pressed", !group.hidden);
        button.addEventListener("click", () => {
          group.hidden = !group.hidden;
          button.setAttribute("aria-pressed", !group.hidden);
          draw();
        });
        item.append(button);
        return item;
      }));
    }

    for (const control of [across, up]) control.addEventListener("change", draw);
    find("whole").addEventListener("click", whole);
    // Each quantity keeps its own scale, linear or log.
    scale.addEventListener("click", () => {
      const quantity = data.quantities[up.value];
      quantity.log = !quantity.log;
      draw();
    });
    if (problem) problem.addEventListener("change", () => { legend(); draw(); });
    legend();
    draw();
  }

  function heat() {
    const which = find("sweep"), across = find("heat-across"), up = find("heat-up");
    const sweep = () => data.sweeps[which.value];
    let before;

    function parameters() {
      for (const choice of [across, up])
        choice.replaceChildren(...sweep().parameters.map((parameter, k) => new Option(parameter.name, k)));
      before = [across.value, up.value] = ["0", "1"];
      draw();
    }

    // A parameter cannot be on both axes: choosing that of the other axis swaps them.
    function changed() {
      if (across.value === up.value) [across.value, up.value] = [before[1], before[0]];
      before = [across.value, up.value];
      draw();
    }

    function draw() {
      const [x, y] = [across.value, up.value].map(k => sweep().parameters[k]);
      const cells = cellsOf(sweep(), Number(across.value), Number(up.value)), [least, most] = shades(cells);
      const labels = {x: x.levels.map(plain), y: y.levels.map(plain), meta: [plain(x.name), plain(y.name)]};
      const common = {
        ...labels, type: "heatmap", xgap: 1, ygap: 1,
        hovertemplate: "%{meta[1]} %{y}<br>%{meta[0]} %{x}<br>loss %{z:.6~g}<extra></extra>",
      };
      const traces = [
        {...common, z: cells.map(row => row.map(v => typeof v === "number" ? v : null)), colorscale: "Cividis",
         reversescale: true, zmin: least, zmax: most, name: "loss",
         colorbar: {title: {text: "loss", side: "top"}, thickness: 12, outlinewidth: 0, len: 0.95}},
        {...common, z: cells.map(row => row.map(v => v === "diverged" ? 0 : null)), showscale: false, name: "diverged",
         colorscale: [[0, "#d9d9d9"], [1, "#d9d9d9"]], texttemplate: "%{text}", textfont: {color: "#6a6a6a"},
         text: cells.map(row => row.map(v => v === "diverged" ? "×" : "")),
         hovertemplate: "%{meta[1]} %{y}<br>%{meta[0]} %{x}<br>diverged<extra></extra>"},
      ];
      if (x.best !== null) traces.push({
        x: [labels.x[x.best]], y: [labels.y[y.best]], mode: "markers", hoverinfo: "skip",
        marker: {symbol: "star", size: 14, color: "#d55e00", line: {color: "#fff", width: 1.5}},
      });
      find("heat").style.height = Math.min(640, 150 + 30 * y.levels.length) + "px";
      const category = (parameter, order) => axis(parameter.name, {
        type: "category", categoryorder: "array", categoryarray: order, showgrid: false, showline: false, ticks: "",
      });
      Plotly.newPlot("heat", traces, layout({xaxis: category(x, labels.x), yaxis: category(y, labels.y)}), config);
    }

    which.addEventListener("change", parameters);
    for (const control of [across, up]) control.addEventListener("change", changed);
    parameters();
  }

  if (find("curves")) curves();
  if (find("heat")) heat();

  // A plot follows the width of its place, also where that changes without the window's, as in a frame.
  const place = new ResizeObserver(all => { for (const {target} of all) Plotly.relayout(target, {autosize: true}); });
  for (const plot of document.querySelectorAll(".plot")) place.observe(plot);

  // Paper is narrower than most windows, and printing does not trigger a resize event.
  const fit = change => { for (const plot of document.querySelectorAll(".plot")) Plotly.relayout(plot, change); };
  window.addEventListener("beforeprint", () => fit({width: 680}));
  window.addEventListener("afterprint", () => fit({width: null, autosize: true}));
}

// Outside a browser, tests import the functions and nothing is shown.
if (typeof document === "undefined") module.exports = {band, cellsOf, end, lineOf, plain, range, shades, unseen, wrapped};
else show();
