// Both outputs side by side: bars, the numbers of the paged path and of contiguous attention, and their differences.

import { h } from '../../stage/js/dom.js';
import { four, tiny } from './steps.js';

const BAR = { wide: 15, tall: 8 };      // px of the tallest bar, up or down

function bar(value, most, high) {
  const up = value >= 0, box = h('div', 'obar', h('i', up ? 'pos' : 'neg'), { 'aria-hidden': 'true' });
  Object.assign(box.firstChild.style, { height: `${Math.max(1, high * Math.abs(value) / most).toFixed(1)}px`, [up ? 'bottom' : 'top']: '50%' });
  return box;
}

// A table with a column a number, or (`tall`, for narrow panes) a row a number.
export function outputTable(x, tall) {
  const most = Math.max(...x.output_paged.map(Math.abs), 1e-12), n = x.output_paged.length;
  const columns = [['paged', x.output_paged, four], ['contiguous', x.output_dense, four], ['difference', x.differences, tiny]];
  const cell = ([name, values, text], i) => h('td', '', text(values[i]), { 'data-output': name, 'data-index': i, 'data-value': values[i] });
  const head = (text, scope) => h('th', '', text, { scope });
  const each = build => Array.from({ length: n }, (_, i) => build(i));
  const bars = i => h('td', '', bar(x.output_paged[i], most, tall ? BAR.tall : BAR.wide));
  const rows = tall
    ? [h('tr', '', [h('td'), ...columns.map(([name]) => head(name, 'col'))]), ...each(i => h('tr', '', [bars(i), ...columns.map(column => cell(column, i))]))]
    : [h('tr', '', [h('td'), ...each(bars)]), ...columns.map(column => h('tr', '', [head(column[0], 'row'), ...each(i => cell(column, i))]))];
  return h('table', tall ? 'otable tall' : 'otable', [h('caption', 'vh', 'The output vector by the paged path and by contiguous attention'), h('colgroup', '', h('col', 'names')), h('tbody', '', rows)]);
}
