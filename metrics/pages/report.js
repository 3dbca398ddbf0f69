(() => {
  const box = document.querySelector('[data-rows]');
  if (!box) return;
  const rows = +box.dataset.rows, per = +box.dataset.per;
  const steps = box.dataset.steps.split(' ').map(Number);
  const list = text => text.split(' ').map(v => v === '' ? NaN : +v);
  const curves = [...document.querySelectorAll('.curve')].map(figure => ({figure,
    low: list(figure.dataset.low), high: list(figure.dataset.high)}));
  const short = v => String(+v.toPrecision(4));
  const text = (v, unit) => {
    if (unit === 's') return v >= 1 || v === 0 ? short(v) + ' s' : v >= 1e-3 ? short(v * 1e3) + ' ms' : short(v * 1e6) + ' µs';
    if (unit === 'B') { let n = 0; while (v >= 1024 && n < 4) { v /= 1024; n++; } return short(v) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][n]; }
    return short(v);
  };
  let from = 0, to = rows;
  const stepAt = row => steps[Math.max(0, Math.min(steps.length - 1, Math.floor(row / per)))];
  const draw = () => {
    const first = Math.floor(from / per), last = Math.max(first + 1, Math.ceil(to / per));
    for (const {figure, low, high} of curves) {
      let least = Infinity, most = -Infinity;
      for (let i = first; i < last; i++) { if (low[i] < least) least = low[i]; if (high[i] > most) most = high[i]; }
      if (!(least <= most)) { figure.querySelector('.line').setAttribute('d', ''); continue; }
      const span = most - least || Math.abs(most) || 1, middle = (most + least) / 2;
      const y = v => (50 - (v - middle) / span * 90).toFixed(2);
      let d = '', pen = 'M';
      for (let i = first; i < last; i++) {
        if (!(low[i] <= high[i])) { pen = 'M'; continue; }
        const x = (((i + .5) * per - from) / (to - from) * 1000).toFixed(1);
        d += pen + x + ' ' + y(low[i]) + (high[i] > low[i] ? 'L' + x + ' ' + y(high[i]) : pen === 'M' ? 'h0' : '');
        pen = 'L';
      }
      figure.querySelector('.line').setAttribute('d', d);
      const marks = figure.querySelector('.fixed');
      if (marks) marks.setAttribute('transform', `translate(${-from / (to - from) * 1000} 0) scale(${rows / (to - from)} 1)`);
      figure.querySelector('small').textContent = text(least, figure.dataset.unit) + ' to ' + text(most, figure.dataset.unit);
    }
    for (const heat of document.querySelectorAll('svg[data-first]')) {
      const scale = +heat.dataset.per, at = (from - heat.dataset.first) / scale;
      heat.setAttribute('viewBox', `${at} 0 ${(to - from) / scale} ${heat.dataset.height}`);
    }
    for (const out of document.querySelectorAll('.tools output'))
      out.textContent = `steps ${stepAt(from)} to ${stepAt(to - 1)}`;
  };
  const show = (a, b) => {
    const size = Math.min(rows, Math.max(4 * per, b - a));
    from = Math.min(Math.max(0, a), rows - size); to = from + size; draw();
  };
  const zoom = ratio => { const middle = (from + to) / 2, half = (to - from) / 2 * ratio; show(middle - half, middle + half); };
  const move = part => show(from + part * (to - from), to + part * (to - from));
  const acts = {in: () => zoom(.5), out: () => zoom(2), left: () => move(-.5), right: () => move(.5), all: () => show(0, rows)};
  for (const tools of document.querySelectorAll('.tools')) {
    tools.hidden = false;
    for (const button of tools.querySelectorAll('button')) button.addEventListener('click', acts[button.value]);
  }
  for (const plot of document.querySelectorAll('.curve .plot')) {
    let start = null, mark = null;
    const part = e => { const r = plot.getBoundingClientRect(); return Math.min(1, Math.max(0, (e.clientX - r.left) / r.width)); };
    plot.addEventListener('pointerdown', e => {
      start = part(e); plot.setPointerCapture(e.pointerId);
      mark = document.createElementNS('http://www.w3.org/2000/svg', 'rect');
      mark.setAttribute('height', 100); plot.append(mark);
    });
    plot.addEventListener('pointermove', e => {
      if (!mark) return;
      const now = part(e);
      mark.setAttribute('x', 1000 * Math.min(start, now)); mark.setAttribute('width', 1000 * Math.abs(now - start));
    });
    const end = e => {
      if (!mark) return;
      mark.remove(); mark = null;
      const now = part(e), size = to - from, a = from + Math.min(start, now) * size, b = from + Math.max(start, now) * size;
      if (e.type === 'pointerup' && Math.abs(now - start) > .01) show(a, b);
    };
    plot.addEventListener('pointerup', end); plot.addEventListener('pointercancel', end);
    plot.addEventListener('dblclick', acts.all);
  }
  draw();
})();
