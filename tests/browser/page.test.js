"use strict";

const assert = require("node:assert/strict");
const test = require("node:test");

const {band, cellsOf, end, lineOf, plain, range, shades, unseen, wrapped} = require("../../src/peerdescent/report/page.js");

const group = {label: "dsgd", colour: "#0072B2", diverged: false};
const line = (mid, more = {}) => ({group, index: 0, x: mid.map((_, k) => k), mid, low: mid, high: mid, ...more});
const near = (actual, expected) => {
  assert.equal(actual.length, expected.length);
  actual.forEach((value, k) => assert.ok(Math.abs(value - expected[k]) < 1e-12, `${actual} is not ${expected}`));
};

test("labels are neither HTML nor templates", () => {
  assert.equal(plain("a<b>&amp;%{x}"), "a&#60;b&#62;&#38;amp;%&#123;x}");
});

test("long names break after a comma, and nothing of them is lost", () => {
  assert.equal(wrapped("dsgd"), "dsgd");
  const long = "gt-hsgd[alpha=0.5,beta=0.01,batch=1,initial-batch=32]";
  assert.equal(wrapped(long), "gt-hsgd[alpha=0.5,beta=0.01,batch=1,<br>initial-batch=32]");
  assert.equal(wrapped("a".repeat(90)).replaceAll("<br>", ""), "a".repeat(90));
  assert.equal(wrapped("<".repeat(41)), `${"&#60;".repeat(40)}<br>&#60;`);
  assert.equal(wrapped(""), "");
});

test("a line is that of its axis and quantity, and empty where there is none", () => {
  const values = {mid: [2, 1], low: [1, 0], high: [3, 2]};
  const own = {...group, lines: {epoch: {x: [0, 1], y: {loss: values, gap: {mid: [1, 0]}}}}};
  assert.deepEqual(lineOf(own, 7, "epoch", "loss"), {group: own, index: 7, x: [0, 1], ...values});
  const gap = lineOf(own, 7, "epoch", "gap");
  assert.equal(gap.low, gap.mid);
  assert.deepEqual(lineOf(own, 7, "epoch", "accuracy").x, []);
  assert.deepEqual(lineOf(own, 7, "bytes", "loss").x, []);
});

test("the vertical axis fits what did not diverge", () => {
  const gone = line([1, 50, null], {group: {...group, diverged: true}});
  near(range([line([1, 0]), gone], false, true), [-0.05, 1.05]);
  near(range([gone], false, false), [1 - 2.45, 50 + 2.45]);
  near(range([line([100, 1, 0, null])], true, true), [-0.1, 2.1]);
  assert.equal(range([line([null])], false, true), null);
  assert.equal(range([line([0, 0])], true, true), null);
  near(range([line([2, 2])], false, true), [1.9, 2.1]);
});

test("what should fall is followed as far above its start as below, and what may climb all the way", () => {
  near(range([line([1, 0, 9])], false, true), [-0.1, 2.1]);
  near(range([line([0.1, 0, 1])], false, false), [-0.05, 1.05]);
});

test("a band goes there on its upper edge and back on its lower", () => {
  const wide = line([2, 1, null], {low: [1, -1, null], high: [3, 2, null]});
  const outline = band(wide, false);
  assert.deepEqual(outline.x, [0, 1, 1, 0]);
  assert.deepEqual(outline.y, [3, 2, -1, 1]);
  assert.deepEqual(band(wide, true).y, [3, 2, 1, 1]);
  assert.equal(outline.fillcolor, "#0072B22b");
});

test("a cross marks the last point, or the upper edge", () => {
  const [cross] = end(line([1, 2, null]), [0, 9], false);
  assert.deepEqual([cross.x, cross.y], [[1], [2]]);
  assert.deepEqual(end(line([1, 5000]), [0, 2], true)[0].y, [100]);
  assert.deepEqual(end(line([1, 5000]), null, true)[0].y, [5000]);
  assert.deepEqual(end(line([null]), [0, 9], false), []);
  assert.deepEqual(end(line([0, 0]), [0, 9], true), []);
});

test("what a log axis cannot show is named", () => {
  const of = (label, mid) => line(mid, {group: {...group, label}});
  const lines = [of("a", [0, 0]), of("b", [0, 1]), of("c", [-1, null]), of("d", [0, null]), of("e", [])];
  assert.deepEqual(unseen(lines, true), ["0: a, d", "not above 0: c"]);
  assert.deepEqual(unseen(lines, false), []);
});

test("a map is stored once, and turned where its parameters are exchanged", () => {
  const sweep = {cells: {"0,1": [[1, 2, 3], [4, "diverged", null]], "2,10": [[7]]}};
  assert.deepEqual(cellsOf(sweep, 1, 0), [[1, 2, 3], [4, "diverged", null]]);
  assert.deepEqual(cellsOf(sweep, 0, 1), [[1, 4], [2, "diverged"], [3, null]]);
  assert.deepEqual(cellsOf(sweep, 10, 2), [[7]]);
});

test("the colours of a map are those of figures", () => {
  assert.deepEqual(shades([[0.3, 0.31, 0.32], [0.33, 0.34, 50, "diverged", null]]), [0.3, 0.3 + 3 * (0.325 - 0.3)]);
  assert.deepEqual(shades([[...Array(6).keys()]]), [0, 5]);
  assert.deepEqual(shades([[1, 1, 5]]), [1, 5]);
  assert.deepEqual(shades([["diverged", null]]), [undefined, undefined]);
});
