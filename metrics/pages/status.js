'use strict';
(() => {
  if (!window.EventSource) return setTimeout(() => location.reload(), 5000);
  const kept = new Map();  // HTML that came while somebody selected or typed in the part
  const isInUse = box => {
    const chosen = getSelection();
    const selects = chosen && !chosen.isCollapsed && box.contains(chosen.anchorNode);
    const focus = document.activeElement;
    return selects || (focus && focus.tagName === 'INPUT' && box.contains(focus));
  };
  const keyed = (box, what) => [...box.querySelectorAll(what)];
  const put = (id, html) => {
    if (id === 'title') { document.head.querySelector('title').innerHTML = html; return; }
    const box = document.getElementById(id);
    if (!box) return;
    if (isInUse(box)) { kept.set(id, html); return; }
    kept.delete(id);
    const open = keyed(box, 'details').map(d => d.open);
    const along = keyed(box, '.scroll').map(s => s.scrollLeft);
    const focus = keyed(box, 'a,summary,button').indexOf(document.activeElement);
    box.innerHTML = html;
    keyed(box, 'details').forEach((d, i) => { if (open[i] !== undefined) d.open = open[i]; });
    keyed(box, '.scroll').forEach((s, i) => { if (along[i]) s.scrollLeft = along[i]; });
    const again = keyed(box, 'a,summary,button')[focus];
    if (again) again.focus({preventScroll: true});
  };
  const note = document.createElement('p');
  note.className = 'note';
  note.setAttribute('role', 'status');
  const lost = () => {
    if (note.isConnected) return;
    note.textContent = 'No connection since ' + new Date().toLocaleTimeString() +
      '. These are the last values; trying again.';
    document.getElementById('part-head').after(note);
  };
  const events = new EventSource('/status/events');
  events.addEventListener('part', event => {
    const end = event.data.indexOf('\n');
    put(event.data.slice(0, end), event.data.slice(end + 1));
    document.documentElement.dataset.events = 1 + +(document.documentElement.dataset.events || 0);
  });
  events.addEventListener('end', () => { events.close(); note.remove(); });
  events.onopen = () => note.remove();
  events.onerror = () => {
    if (events.readyState !== EventSource.CLOSED) return lost();
    // The server refused one more follower, so the page polls instead.
    setInterval(() => fetch('/version').then(answer => answer.ok && location.reload(), lost), 5000);
  };
  setInterval(() => { for (const [id, html] of [...kept]) put(id, html); }, 1000);
})();
