// Formats of values for display.

const NUMBERS = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function count(number) {
  return typeof number === "number" ? NUMBERS.format(number) : "–";
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function bytes(number) {
  if (typeof number !== "number") return "–";
  let unit = 0;
  while (Math.abs(number) >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${UNITS[unit]}`;
}

export function rate(number) {
  if (typeof number !== "number" || !Number.isFinite(number)) return "–";
  return `${number >= 100 ? NUMBERS.format(number) : number.toFixed(number > 0 && number < 10 ? 1 : 0)}/s`;
}

export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days`;
}

/** Format a time, from ISO text or milliseconds since 1970, in the time zone of the browser. */
export function time(moment, withMilliseconds = false) {
  if (moment === null || moment === undefined) return "–";
  const date = new Date(moment);
  if (Number.isNaN(date.getTime())) return String(moment);
  const two = (number, width = 2) => String(number).padStart(width, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${day} ${clock}${withMilliseconds ? `.${two(date.getMilliseconds(), 3)}` : ""}`;
}

export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";

export function cut(text, characters) {
  return text.length > characters ? `${text.slice(0, characters - 1)}…` : text;
}

/** Return the quantile `part` of the samples between two states of a histogram: the upper bound of its bucket. */
export function quantile(histogram, former, part) {
  if (!histogram) return null;
  const before = new Map(former?.buckets ?? []);
  const counts = histogram.buckets.map(([bound, number]) => [bound, number - (before.get(bound) ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  const [bound] = counts.find(([, number]) => number >= all * part) ?? ["+Inf"];
  return bound === "+Inf" ? Infinity : Number(bound);
}
