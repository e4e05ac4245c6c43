// MessagePack as indented text. Bytes are shown as {"$bytes": hex}, extensions as {"$ext 5": hex}.

import { Bytes, DEPTH_MAX, Limit, numberText, timeText, Undecodable, Writer, writeText, written } from "./writer.js";

const TIMESTAMP = -1;
const NEVER = 0xc1;

/** Return {text, note} of bytes that are one value. Throws Undecodable. Pure. */
export function decodeMsgpack(data) {
  if (!data.length) throw new Undecodable("It is empty.");
  const from = new Bytes(data);
  return written((writer) => {
    value(from, writer, 0);
    if (from.left) throw new Undecodable(`It is not one value of MessagePack: ${from.left} bytes follow after the first value.`);
    return { note: "" };
  });
}

/** Return true if the first byte begins a list or a map. */
export function isContainer(byte) {
  return (byte >= 0x80 && byte <= 0x9f) || (byte >= 0xdc && byte <= 0xdf);
}

function value(from, writer, depth) {
  if (depth > DEPTH_MAX) throw new Limit(`It is nested deeper than ${DEPTH_MAX} levels.`);
  const type = from.byte();
  const { view } = from;
  const size = (bytes) => {
    const at = from.skip(bytes);
    return bytes === 1 ? view.getUint8(at) : bytes === 2 ? view.getUint16(at) : view.getUint32(at);
  };
  if (type < 0x80) return writer.scalar(String(type));
  if (type < 0x90) return map(from, writer, type & 15, depth);
  if (type < 0xa0) return list(from, writer, type & 15, depth);
  if (type < 0xc0) return writeText(writer, from.take(type & 31));
  if (type >= 0xe0) return writer.scalar(String(type - 256));
  switch (type) {
    case 0xc0: return writer.scalar("null");
    case 0xc2: return writer.scalar("false");
    case 0xc3: return writer.scalar("true");
    case 0xc4: case 0xc5: case 0xc6: return writer.bytes(from.take(size(1 << (type - 0xc4))));
    case 0xc7: case 0xc8: case 0xc9: return extension(from, writer, size(1 << (type - 0xc7)));
    case 0xca: return writer.scalar(numberText(view.getFloat32(from.skip(4))));
    case 0xcb: return writer.scalar(numberText(view.getFloat64(from.skip(8))));
    case 0xcc: return writer.scalar(String(view.getUint8(from.skip(1))));
    case 0xcd: return writer.scalar(String(view.getUint16(from.skip(2))));
    case 0xce: return writer.scalar(String(view.getUint32(from.skip(4))));
    case 0xcf: return writer.scalar(String(view.getBigUint64(from.skip(8))));
    case 0xd0: return writer.scalar(String(view.getInt8(from.skip(1))));
    case 0xd1: return writer.scalar(String(view.getInt16(from.skip(2))));
    case 0xd2: return writer.scalar(String(view.getInt32(from.skip(4))));
    case 0xd3: return writer.scalar(String(view.getBigInt64(from.skip(8))));
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return extension(from, writer, 1 << (type - 0xd4));
    case 0xd9: case 0xda: case 0xdb: return writeText(writer, from.take(size(1 << (type - 0xd9))));
    case 0xdc: case 0xdd: return list(from, writer, size(type === 0xdc ? 2 : 4), depth);
    case 0xde: case 0xdf: return map(from, writer, size(type === 0xde ? 2 : 4), depth);
    default: throw new Undecodable(`It is not MessagePack: the byte ${NEVER.toString(16)} at ${from.at - 1} has no meaning.`);
  }
}

function list(from, writer, count, depth) {
  writer.open(true);
  for (let at = 0; at < count; at += 1) value(from, writer, depth + 1);
  writer.close();
}

function map(from, writer, count, depth) {
  writer.open(false);
  for (let at = 0; at < count; at += 1) {
    const name = new Writer(writer.budget);
    value(from, name, depth + 1);
    const { text } = name;
    // a name that is a text is shown as it is, and any other value as its JSON
    writer.key(text.startsWith('"') ? JSON.parse(text) : text.replace(/\s+/g, " "));
    value(from, writer, depth + 1);
  }
  writer.close();
}

function extension(from, writer, size) {
  const kind = from.view.getInt8(from.skip(1));
  const data = from.take(size);
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  if (kind === TIMESTAMP && size === 4) return writer.scalar(timeText(view.getUint32(0), 1));
  if (kind === TIMESTAMP && size === 8) {
    const both = view.getBigUint64(0);
    return writer.scalar(timeText((both & 0x3ffffffffn) * 1_000_000_000n + (both >> 34n), 1_000_000_000));
  }
  if (kind === TIMESTAMP && size === 12) return writer.scalar(timeText(view.getBigInt64(4) * 1_000_000_000n + BigInt(view.getUint32(0)), 1_000_000_000));
  return writer.bytes(data, `$ext ${kind}`);
}
