// Elements of the page and number formats.
export const by = (id) => document.getElementById(id);
export const make = (tag, text, name) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
};
export const percent = (value) => {
  const shown = 100 * value;
  return `${shown >= 99.95 || shown === 0 ? shown.toFixed(0) : shown >= 10 ? shown.toFixed(0) : shown >= 1 ? shown.toFixed(1) : shown.toPrecision(2)}%`;
};
export const number = (value) => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const [head, power] = value.toExponential(1).split("e");
    const raised = String(Number(power)).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
    return Number(head) === 1 ? `10${raised}` : `${Number(head)}·10${raised}`;
  }
  return size >= 999.5 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
};

// Upper bounds are rounded up, never down.
const up = (value, digits) => {
  const near = Number(value.toPrecision(digits));
  return near >= value ? near : Number((near + 10 ** (Math.floor(Math.log10(near)) - digits + 1)).toPrecision(digits));
};
export const atMost = (value) => number(up(value, value >= 1e5 || value < 1e-3 ? 2 : 3));
export const boundOf = (found) => `≤ ${percent(Math.min(1, up(found.bound, 2)))}`;
