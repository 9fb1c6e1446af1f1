// What is wrong with the layout below `root`: texts that are cut, overlap each other or leave their box.
(root) => {
  const problems = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) problems.push(`the page is ${wide} pixels wide`);
  const texts = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest(".skip, .told") || !parent.checkVisibility({ visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()];
    const words = node.data.trim();
    texts.push(...boxes.map((box) => ({ words, box })));
    const inside = (holder, what, slack) => {
      const outer = holder.getBoundingClientRect();
      const out = boxes.some((box) =>
        box.left < outer.left - slack || box.right > outer.right + slack || box.top < outer.top - slack || box.bottom > outer.bottom + slack);
      if (out) problems.push(`"${words}" ${what}`);
    };
    for (let up = parent; up !== null && up !== root; up = up.parentElement) {
      if (getComputedStyle(up).overflowX !== "visible") inside(up, "is cut", 1.5);
    }
    const holder = parent.closest("svg, .pill, button, .tile, .card, .warnings li, dialog");
    if (holder !== null) inside(holder, "leaves its box", 1.5);
  }
  const meet = (a, b) => {
    const [width, height] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
    return width > 1.5 && height > 4;
  };
  texts.forEach((a, index) => {
    for (const b of texts.slice(index + 1)) if (meet(a.box, b.box)) problems.push(`"${a.words}" overlaps "${b.words}"`);
  });
  const visible = (selector) => [...root.querySelectorAll(selector)].filter((it) => it.checkVisibility({ visibilityProperty: true }));
  for (const arrow of visible(".arrow")) {
    const line = arrow.getBoundingClientRect();
    const around = { left: line.left - 3, right: line.right + 3, top: line.top - 3, bottom: line.bottom + 3 };
    for (const { words, box } of texts) if (meet(around, box)) problems.push(`an arrow crosses "${words}"`);
  }
  const boxes = visible(".card, .tile, .warnings li").filter((it) => !it.parentElement.closest(".card"));
  boxes.forEach((a, index) => {
    for (const b of boxes.slice(index + 1)) {
      if (meet(a.getBoundingClientRect(), b.getBoundingClientRect())) problems.push(`${a.id || a.textContent} overlaps ${b.id || b.textContent}`);
    }
  });
  for (const control of visible("button, input")) {
    const { width, height } = control.getBoundingClientRect();
    if (control.type !== "checkbox" && (width < 40 || height < 24)) problems.push(`${control.textContent || control.id} is ${width} by ${height}`);
    if (!control.labels?.length && !control.textContent && !control.ariaLabel) problems.push(`${control.id} has no name`);
  }
  for (const canvas of visible("canvas")) if (canvas.width < 100) problems.push("a chart has no room");
  return problems;
}
