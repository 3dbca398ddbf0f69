// What is wrong with how a page looks, as a list of sentences: text that lies on other text, that sticks
// out of the window, or that is hard to read.
(() => {
  const found = [];
  for (const details of document.querySelectorAll('details')) details.open = true;
  const say = text => { if (found.length < 20) found.push(text); };
  const quote = text => '"' + text.trim().replace(/\s+/g, ' ').slice(0, 40) + '"';
  if (document.documentElement.scrollWidth > innerWidth)
    say(`the page is ${document.documentElement.scrollWidth} wide in a window of ${innerWidth}`);

  const clipped = (rect, element) => {
    let box = {left: rect.left, right: rect.right, top: rect.top, bottom: rect.bottom};
    for (let e = element; e && e !== document.body; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (style.overflowX === 'visible' && style.overflowY === 'visible') continue;
      const r = e.getBoundingClientRect();
      box = {left: Math.max(box.left, r.left), right: Math.min(box.right, r.right),
             top: Math.max(box.top, r.top), bottom: Math.min(box.bottom, r.bottom)};
    }
    return box;
  };
  const parse = text => {
    const n = (text.match(/[\d.]+/g) || []).map(Number);
    if (/^color\(srgb/.test(text)) return [n[0] * 255, n[1] * 255, n[2] * 255, n.length > 3 ? n[3] : 1];
    return n.length >= 3 ? [n[0], n[1], n[2], n.length > 3 ? n[3] : 1] : [0, 0, 0, 0];
  };
  const over = (top, below) => below.map((c, i) => i === 3 ? 1 : top[i] * top[3] + c * (1 - top[3]));
  const light = c => {
    const [r, g, b] = c.map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b;
  };
  // The colours of a gradient's stops.
  const stops = image => (image.match(/(?:rgba?|color)\([^)]*\)/g) || []).map(parse);
  // Every colour that may lie under an element's text: a gradient is each of its stops. Null where a picture of another
  // kind is one of them.
  const grounds = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (style.backgroundImage.includes('url(')) return null;
      layers.push(stops(style.backgroundImage), [parse(style.backgroundColor)]);
      if (layers.at(-1)[0][3] === 1) break;
    }
    return layers.filter(colours => colours.length).reverse().reduce(
      (below, tops) => below.flatMap(b => tops.map(t => over(t, b))), [[255, 255, 255, 1]]);
  };
  const contrast = (ink, ground) => {
    const [a, b] = [over(ink, ground), ground].map(c => light(c.slice(0, 3)));
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  };

  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || element.closest('script,style,noscript,title')) continue;
    const style = getComputedStyle(element);
    if (style.visibility !== 'visible') continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const box = clipped(rect, element);
      if (box.right - box.left < 2 || box.bottom - box.top < 2) continue;
      texts.push({box, element, text: node.data});
      if (box.right > innerWidth + 1 || box.left < -1) say(`${quote(node.data)} sticks out of the window`);
    }
    const below = grounds(element);
    if (!below || !range.getClientRects().length) continue;
    const ink = parse(element instanceof SVGElement ? style.fill : style.color);
    const worst = Math.min(...below.map(ground => contrast(ink, ground)));
    if (worst < 4.5) say(`${quote(node.data)} has a contrast of ${worst.toFixed(2)}`);
  }
  texts.sort((a, b) => a.box.top - b.box.top);
  for (let i = 0; i < texts.length; i++) {
    for (let j = i + 1; j < texts.length && texts[j].box.top < texts[i].box.bottom; j++) {
      const a = texts[i], b = texts[j];
      if (a.element === b.element) continue;
      const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (wide > 2 && high > Math.min(a.box.bottom - a.box.top, b.box.bottom - b.box.top) / 3)
        say(`${quote(a.text)} lies on ${quote(b.text)}`);
    }
  }
  return found;
})()
