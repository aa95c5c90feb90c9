// The pages work without this file: it draws charts beside their tables, tells times in the
// viewer's zone, and reads the token behind the # of a one-time link.
"use strict";

function localTimes(root) {
  const times = [...root.querySelectorAll("time[datetime]")];
  const widths = times.map((time) => time.offsetWidth);
  times.forEach((time, i) => {
    // As the server writes it, and in the room that took: nothing moves, however late this comes.
    const style = time.dataset.only === "time" ? { timeStyle: "short" } : { dateStyle: "short", timeStyle: "medium" };
    time.style.minWidth = `${widths[i]}px`;
    time.textContent = new Date(time.dateTime).toLocaleString("sv-SE", style);
  });
}

function charts(root) {
  for (const figure of root.querySelectorAll("figure[data-chart]")) {
    const table = figure.querySelector("table"), plot = figure.querySelector(".plot");
    const rows = [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells].slice(1);
    const numbers = (i) => rows.map((row) => Number(row.cells[i].dataset.value));
    const data = [rows.map((row) => Number(row.cells[0].dataset.value)), ...heads.map((_, i) => numbers(i + 1))];
    const style = getComputedStyle(figure);
    const ink = style.getPropertyValue("--soft"), line = style.getPropertyValue("--line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const colours = ["#2f6fed", "#12946b", "#b7791f", "#d2433b"];
    const first = Number(figure.dataset.colour);
    plot.replaceChildren();
    new uPlot({
      width: plot.clientWidth || figure.clientWidth, height: 200, legend: { show: false },
      cursor: { show: false }, scales: { y: { range: (_, low, high) => [0, Math.max(high, 1) * 1.05] } },
      axes: [axis, { ...axis, size: 56 }],
      series: [{}, ...heads.map((head, i) => ({
        label: head.textContent, stroke: colours[i + first], fill: colours[i + first] + "22", width: 1.5, points: { show: false },
      }))],
    }, data, plot);
    const details = figure.querySelector("details");
    if (!figure.dataset.drawn) details.open = opened.has(figure.id);
    figure.dataset.drawn = "yes";
    details.addEventListener("toggle", () => opened[details.open ? "add" : "delete"](figure.id));
  }
}

function linkToken() {
  const field = document.querySelector("input[data-link-token]");
  if (field && location.hash.length > 1) {
    field.value = location.href;
    field.closest("label").hidden = true;
    history.replaceState(null, "", location.pathname);
  }
}

const opened = new Set(); // tables that the viewer wants to see, over refreshes

function improve(root) {
  localTimes(root);
  charts(root);
}

document.addEventListener("DOMContentLoaded", () => { improve(document); linkToken(); });
document.addEventListener("htmx:afterSwap", (event) => improve(event.target));
let resized;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => charts(document), 150); });
