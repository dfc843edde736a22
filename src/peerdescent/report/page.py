"""The page of a report: its style, its script, and how they become one file that needs nothing else.

The script draws what it finds in the page's JSON with Plotly. Only it and Plotly may run: the page allows scripts by
their digests and forbids all requests, so a name from a folder that looks like HTML can do nothing, even if some escape
were forgotten.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

Cell = str | tuple[str, str]
"""Text, or text and a second, smaller line."""

SHORT = 24  # letters


def table(
    head: Sequence[str], rows: Iterable[Sequence[Cell]], text: Collection[str] = (), marked: Collection[int] = ()
) -> str:
    """An HTML table of plain text; the columns named in `text` stand to the left, rows with a `marked` index are bold.

    >>> print(table(["name"], [["a < b"]], text=["name"]))
    <div class="wide" tabindex="0"><table><thead><tr><th scope="col">name</th></tr></thead><tbody>
    <tr><td><span class="short">a &lt; b</span></td></tr>
    </tbody></table></div>
    """
    styles = ["" if name in text else ' class="number"' for name in head]
    names = "".join(f'<th scope="col"{style}>{escape(name)}</th>' for name, style in zip(head, styles, strict=True))
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td{style}>{_cell(cell)}</td>" for cell, style in zip(row, styles, strict=True))
        style = ' class="best"' if index in marked else ""
        lines.append(f"<tr{style}>{cells}</tr>\n")
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{names}</tr></thead><tbody>\n'
        f"{''.join(lines)}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    first, second = (cell, "") if isinstance(cell, str) else cell
    return breakable(first) + (f"<small>{breakable(second)}</small>" if second else "")


def breakable(text: str) -> str:
    """Text as HTML: what is short stays on one line, what is long may break after commas, as in a list of parameters.

    >>> print(breakable("10 epochs"), breakable("gt-hsgd[alpha=0.5,beta=0.01]"))
    <span class="short">10 epochs</span> <span class="long">gt-hsgd[alpha=0.5,<wbr>beta=0.01]</span>
    """
    if len(text) <= SHORT:
        return f'<span class="short">{escape(text)}</span>'
    return f'<span class="long">{escape(text).replace(",", ",<wbr>")}</span>'


def select(name: str, label: str, options: Mapping[str, str], chosen: str = "") -> str:
    """A labelled choice; `options` maps values to what is shown."""
    lines = (
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}</option>'
        for value, text in options.items()
    )
    return f'<label for="{name}">{escape(label)}<select id="{name}">{"".join(lines)}</select></label>'


def document(title: str, body: str, data: Any) -> str:
    """The whole page; `body` is HTML, `title` is text, and `data` becomes JSON without NaN."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    scripts = [get_plotlyjs(), SCRIPT]
    digests = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    policy = (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="data">{_json(data)}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def _json(data: Any) -> str:
    """JSON that cannot end the element it stands in; what is not ASCII is escaped by `dumps`."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


STYLE = """
:root { color-scheme: light; --ink: #1d2733; --soft: #5b6673; --line: #dde2e7; --wash: #f5f7f9; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 3rem 0 .8rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { margin: .5rem 0; max-width: 46rem; }
.lead { font-size: 1.1rem; overflow-wrap: anywhere; }
.note, figcaption, footer { color: var(--soft); font-size: .875rem; }
figcaption { max-width: 46rem; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
figure { margin: 0; }
.controls { display: flex; flex-wrap: wrap; gap: .75rem 1rem; align-items: end; margin: .75rem 0; }
.controls label { display: grid; gap: .15rem; font-size: .8rem; color: var(--soft); min-width: 0; max-width: 100%; }
select, button { font: inherit; font-size: .95rem; color: var(--ink); background: #fff; border: 1px solid #b9c2cb;
  border-radius: 6px; padding: .4rem .7rem; min-height: 2.4rem; max-width: 100%; cursor: pointer; }
select:hover, button:hover { border-color: var(--accent); }
:focus-visible { outline: 3px solid #56b4e9; outline-offset: 1px; }
#scale[aria-pressed="true"] { background: var(--accent); border-color: var(--accent); color: #fff; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem .5rem; margin: .25rem 0 .6rem; padding: 0; list-style: none; }
.legend button { display: flex; gap: .5rem; align-items: center; min-height: 2rem; padding: .15rem .6rem .15rem .45rem;
  border-color: var(--line); font-size: .85rem; text-align: left; line-height: 1.3; overflow-wrap: anywhere; }
.legend svg { flex: none; }
.legend button[aria-pressed="false"] { color: #6b7681; background: var(--wash); text-decoration: line-through; }
.legend button[aria-pressed="false"] svg { opacity: .25; }
.plot { width: 100%; height: 460px; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.wide > table { min-width: 100%; }
th, td { padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; font-size: .8rem; vertical-align: bottom; }
.number { text-align: right; padding-left: .3rem; }
.short { white-space: nowrap; }
td small { display: block; color: var(--soft); font-weight: 400; }
td .long { display: inline-block; min-width: min(17rem, 45vw); overflow-wrap: anywhere; }
.best td { font-weight: 650; background: #eef6fb; }
.best td:first-child { box-shadow: inset 3px 0 var(--accent); padding-left: .6rem; }
.pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 2rem; align-items: start; }
.pair .wide > table td:last-child { overflow-wrap: anywhere; }
.drawing svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
pre { background: var(--wash); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; }
li { margin: .2rem 0; overflow-wrap: anywhere; }
@media (max-width: 720px) {
  main { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  .plot { height: 360px; }
  .pair { grid-template-columns: minmax(0, 1fr); }
}
@media print {
  main { max-width: none; padding: 0; }
  .controls, .modebar, .hint { display: none !important; }
  .legend button { border: 0; }
  .wide { overflow: visible; }
  .short { white-space: normal; }
  td .long { min-width: 0; }
  table, th { font-size: .68rem; }
  th, td { padding: .25rem .5rem .25rem 0; }
  h2 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
}
"""

SCRIPT = r"""
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = id => document.getElementById(id);
  // Plotly reads labels as a kind of HTML, and as templates.
  const plain = text => text.replace(/[&<>{]/g, letter => `&#${letter.charCodeAt(0)};`);
  // Long names in lines, broken after a comma where there is one.
  const wrapped = text => text.match(/.{1,40}(?:,|\s|$)|.{1,40}/gsu)?.map(plain).join("<br>") ?? "";
  // Named one by one, since Plotly has a button that would send the data to its makers.
  const buttons = [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d"]];
  const config = {responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: buttons};
  const axis = (title, more) => ({
    title: {text: title, standoff: 12}, gridcolor: "#e8ecef", linecolor: "#9aa4ae", zeroline: false, showline: true,
    ticks: "outside", tickcolor: "#9aa4ae", automargin: true, exponentformat: "power", ...more,
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
    const logarithmic = {loss: false, gap: true, grad_norm: true, consensus: true};
    const current = () => data.groups.filter(group => !problem || group.problem === problem.value);

    function lineOf(group) {
      const line = group.lines[across.value], values = line && line[up.value], index = data.groups.indexOf(group);
      if (!values) return {group, index, x: [], mid: [], low: [], high: []};
      return {group, index, x: line.x, mid: values.mid, low: values.low || values.mid, high: values.high || values.mid};
    }

    // What diverged does not set the scale, and what climbs is followed as far above the start as the best goes below.
    function range(lines, log) {
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
      else if (start > low) high = Math.min(high, 2 * start - low);
      const room = 0.05 * (high - low) || 0.05 * Math.abs(low) || 0.5;
      return [low - room, high + room];
    }

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

    // Where it was last seen, or at the edge if that is out of sight.
    function end(line, limits, log) {
      const last = line.mid.findLastIndex(v => v !== null && (!log || v > 0));
      if (last < 0) return [];
      const top = limits ? (log ? 10 ** limits[1] : limits[1]) : Infinity;
      return {
        uid: "end" + line.index, mode: "markers", cliponaxis: false,
        x: [line.x[last]], y: [Math.min(line.mid[last], top)],
        marker: {symbol: "x", size: 10, color: line.group.colour}, name: wrapped(line.group.label),
        hovertemplate: "%{fullData.name}<br>diverged<extra></extra>",
      };
    }

    function draw() {
      const log = logarithmic[up.value], lines = current().filter(group => !group.hidden).map(lineOf);
      const limits = range(lines, log), furthest = Math.max(0, ...lines.flatMap(line => line.x)) || 1;
      const traces = [
        ...lines.filter(line => line.low !== line.mid).map(line => band(line, log)),
        ...lines.map(line => ({
          x: line.x, y: line.mid, mode: "lines", name: wrapped(line.group.label), uid: "line" + line.index,
          line: {color: line.group.colour, dash: line.group.dash || "solid", width: 2.2},
          hovertemplate: "<b>%{fullData.name}</b><br>%{xaxis.title.text} %{x:.6~g}<br>%{y:.6~g}<extra></extra>",
        })),
        ...lines.filter(line => line.group.diverged).flatMap(line => end(line, limits, log)),
      ];
      scale.setAttribute("aria-pressed", log);
      // A zoom stays while only lines come and go.
      const view = [across.value, up.value, log, problem && problem.value].join(), same = view === shown;
      shown = view;
      Plotly[same ? "react" : "newPlot"]("curves", traces, layout({
        uirevision: view,
        xaxis: axis(plain(data.axes[across.value]),
                    {range: [-0.02 * furthest, 1.02 * furthest],
                     ...(across.value === "bytes" && {tickformat: "~s", ticksuffix: "B"})}),
        yaxis: axis(plain(data.quantities[up.value]),
                    {type: log ? "log" : "linear", ...(limits ? {range: limits} : {autorange: true})}),
      }), {...config, doubleClick: false});
      if (!same) find("curves").on("plotly_doubleclick", whole);
    }

    // Plotly would go back to what it drew first, which may have been something else.
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
    scale.addEventListener("click", () => { logarithmic[up.value] = !logarithmic[up.value]; draw(); });
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
      before = [across.value, up.value] = ["1", "0"];
      draw();
    }

    // A parameter cannot be on both axes: choosing the other one's swaps them.
    function changed() {
      if (across.value === up.value) [across.value, up.value] = [before[1], before[0]];
      before = [across.value, up.value];
      draw();
    }

    function draw() {
      const [x, y] = [across.value, up.value].map(k => sweep().parameters[k]);
      const [first, second] = [across.value, up.value].map(Number).sort((a, b) => a - b);
      const stored = sweep().cells[first + "," + second];
      const cells = Number(up.value) === first ? stored
                    : stored[0].map((_, column) => stored.map(row => row[column]));
      const values = cells.flat().filter(v => typeof v === "number").sort((a, b) => a - b);
      const labels = {x: x.levels.map(plain), y: y.levels.map(plain), meta: [plain(x.name), plain(y.name)]};
      const common = {
        ...labels, type: "heatmap", xgap: 1, ygap: 1,
        hovertemplate: "%{meta[1]} %{y}<br>%{meta[0]} %{x}<br>loss %{z:.6~g}<extra></extra>",
      };
      // The worst tenth shares a colour, or else it would leave one for all others.
      const most = values[Math.floor(0.9 * (values.length - 1))];
      const row = cells.findIndex(row => row.includes(values[0]));
      const traces = [
        {...common, z: cells.map(row => row.map(v => typeof v === "number" ? v : null)), colorscale: "Viridis",
         reversescale: true, zmin: values[0], zmax: most > values[0] ? most : values.at(-1), name: "loss",
         colorbar: {title: {text: "loss", side: "top"}, thickness: 12, outlinewidth: 0, len: 0.95}},
        {...common, z: cells.map(row => row.map(v => v === "diverged" ? 0 : null)), showscale: false, name: "diverged",
         colorscale: [[0, "#d9d9d9"], [1, "#d9d9d9"]], texttemplate: "%{text}", textfont: {color: "#6a6a6a"},
         text: cells.map(row => row.map(v => v === "diverged" ? "×" : "")),
         hovertemplate: "%{meta[1]} %{y}<br>%{meta[0]} %{x}<br>diverged<extra></extra>"},
      ];
      if (row >= 0) traces.push({
        x: [labels.x[cells[row].indexOf(values[0])]], y: [labels.y[row]], mode: "markers", hoverinfo: "skip",
        marker: {symbol: "star", size: 14, color: "#d55e00", line: {color: "#fff", width: 1.5}},
      });
      find("heat").style.height = Math.min(640, 150 + 30 * y.levels.length) + "px";
      const category = (parameter, labels) => axis(plain(parameter.name), {
        type: "category", categoryorder: "array", categoryarray: labels, showgrid: false, showline: false, ticks: "",
      });
      Plotly.newPlot("heat", traces, layout({xaxis: category(x, labels.x), yaxis: category(y, labels.y)}), config);
    }

    which.addEventListener("change", parameters);
    for (const control of [across, up]) control.addEventListener("change", changed);
    parameters();
  }

  if (find("curves")) curves();
  if (find("heat")) heat();

  // Paper is narrower than most windows, and printing is no resize.
  const fit = change => { for (const plot of document.querySelectorAll(".plot")) Plotly.relayout(plot, change); };
  window.addEventListener("beforeprint", () => fit({width: 680}));
  window.addEventListener("afterprint", () => fit({width: null, autosize: true}));
})();
"""
