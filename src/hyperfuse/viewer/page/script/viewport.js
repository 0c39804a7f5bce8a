// Which part of the page's grid is on the screen: `x`, `y` is the middle in pixels of the grid, `zoom` screen pixels per grid pixel.

const BELOW = 30; // screen pixels that the line with coordinates covers

export class Viewport {
  constructor() {
    Object.assign(this, { x: 0, y: 0, zoom: 1, width: 1, height: 1, gridWidth: 1, gridHeight: 1 });
  }

  // A person who has not moved the map sees all of it also after the window has changed.
  resize(width, height) {
    this.width = Math.max(1, width);
    this.height = Math.max(1, height);
    if (this.fitted) this.fit();
  }

  setGrid(gridWidth, gridHeight) {
    Object.assign(this, { gridWidth, gridHeight });
    this.fit();
  }

  get smallest() {
    return 0.5 * Math.min(this.width / this.gridWidth, this.height / this.gridHeight);
  }
  get largest() {
    return Math.max(48, 4 * this.smallest);
  }

  fit() {
    const free = this.height - BELOW;
    this.zoom = 0.97 * Math.min(this.width / this.gridWidth, free / this.gridHeight);
    this.x = this.gridWidth / 2;
    this.y = this.gridHeight / 2 + BELOW / 2 / this.zoom;
    this.fitted = true;
  }

  toGrid(left, top) {
    return { x: this.x + (left - this.width / 2) / this.zoom, y: this.y + (top - this.height / 2) / this.zoom };
  }
  toScreen(x, y) {
    return { left: (x - this.x) * this.zoom + this.width / 2, top: (y - this.y) * this.zoom + this.height / 2 };
  }

  move(right, down) {
    this.x -= right / this.zoom;
    this.y -= down / this.zoom;
    this.#moved();
  }

  // What lies under (left, top) stays there.
  zoomAt(factor, left = this.width / 2, top = this.height / 2) {
    const fixed = this.toGrid(left, top);
    this.zoom = Math.min(this.largest, Math.max(this.smallest, this.zoom * factor));
    this.x = fixed.x - (left - this.width / 2) / this.zoom;
    this.y = fixed.y - (top - this.height / 2) / this.zoom;
    this.#moved();
  }

  #moved() {
    this.fitted = false;
    this.x = Math.min(this.gridWidth, Math.max(0, this.x));
    this.y = Math.min(this.gridHeight, Math.max(0, this.y));
  }

  // Tiles of a level that are on the screen, from the middle outwards.
  tiles(level, side) {
    const span = side * 2 ** level;
    const first = this.toGrid(0, 0),
      last = this.toGrid(this.width, this.height);
    const clip = (value, size) => Math.min(Math.max(0, Math.floor(value / span)), Math.ceil(size / span) - 1);
    const places = [];
    for (let row = clip(first.y, this.gridHeight); row <= clip(last.y, this.gridHeight); row += 1)
      for (let column = clip(first.x, this.gridWidth); column <= clip(last.x, this.gridWidth); column += 1)
        places.push({ row, column });
    const distance = ({ row, column }) => ((column + 0.5) * span - this.x) ** 2 + ((row + 0.5) * span - this.y) ** 2;
    return places.sort((one, other) => distance(one) - distance(other));
  }
}
