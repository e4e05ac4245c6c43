// Avro as indented text, with a schema of the user: the binary form alone, after the 5 bytes of a
// schema registry, or after the 10 bytes of a single object. A container file has its own schema.

import { Bytes, DEPTH_MAX, Limit, numberText, timeText, Undecodable, utf8, writeText, written } from "./writer.js";

const SCHEMA_MAX = 256 * 1024;
const PRIMITIVES = new Set(["null", "boolean", "int", "long", "float", "double", "bytes", "string"]);
const UNITS = { "timestamp-millis": 1000, "timestamp-micros": 1_000_000, "timestamp-nanos": 1_000_000_000, "local-timestamp-millis": 1000, "local-timestamp-micros": 1_000_000 };
const DAY_S = 86_400n;
const SYNC_BYTES = 16;
const FILE_MARK = [0x4f, 0x62, 0x6a, 1]; // "Obj" and the version

/** The error of a schema that is not valid. Its message says why. */
export class BadSchema extends Error {}

// Schema

/** Return a schema that `decodeAvro` can use. Throws BadSchema. Pure. */
export function parseSchema(text) {
  if (text.length > SCHEMA_MAX) throw new BadSchema(`A schema must have at most ${SCHEMA_MAX} letters, not ${text.length}.`);
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new BadSchema(`The schema is not JSON: ${error.message}.`);
  }
  return node(found, new Map(), "", 0);
}

function node(given, names, space, depth) {
  if (depth > DEPTH_MAX) throw new BadSchema(`The schema is nested deeper than ${DEPTH_MAX} levels.`);
  if (Array.isArray(given)) return { type: "union", of: given.map((one) => node(one, names, space, depth + 1)) };
  if (typeof given === "string") {
    if (PRIMITIVES.has(given)) return { type: given };
    const known = names.get(full(given, space)) ?? names.get(given);
    if (!known) throw new BadSchema(`The schema names the type “${given.slice(0, 60)}”, which it does not define.`);
    return known;
  }
  if (typeof given !== "object" || given === null) throw new BadSchema("A type must be a name, an object or a list.");
  const { type } = given;
  if (typeof type === "object") return node(type, names, space, depth + 1);
  if (type === "array") return { type, of: node(given.items, names, space, depth + 1) };
  if (type === "map") return { type, of: node(given.values, names, space, depth + 1) };
  if (["record", "error", "enum", "fixed"].includes(type)) return namedType(given, names, space, depth);
  return { ...node(type, names, space, depth + 1), logical: given.logicalType, scale: given.scale };
}

function full(name, space) {
  return name.includes(".") || !space ? name : `${space}.${name}`;
}

function namedType(given, names, space, depth) {
  if (typeof given.name !== "string") throw new BadSchema(`A ${given.type} has no name.`);
  const name = full(given.name, given.namespace ?? space);
  const made = { type: given.type === "error" ? "record" : given.type, logical: given.logicalType, scale: given.scale };
  names.set(name, made); // before its fields, because they may name it
  if (made.type === "enum") made.symbols = listOf(given.symbols, `the enum ${name}`, "symbols");
  else if (made.type === "fixed") {
    if (!Number.isInteger(given.size) || given.size < 0) throw new BadSchema(`The fixed ${name} has no size.`);
    made.size = given.size;
  } else {
    const inner = name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "";
    made.fields = listOf(given.fields, `the record ${name}`, "fields").map((field) => {
      if (typeof field?.name !== "string") throw new BadSchema(`A field of the record ${name} has no name.`);
      return { name: field.name, of: node(field.type, names, inner, depth + 1) };
    });
  }
  return made;
}

function listOf(value, what, name) {
  if (!Array.isArray(value)) throw new BadSchema(`The list “${name}” of ${what} is missing.`);
  return value;
}

// Values

/** Return {text, note} of bytes, with a schema of `parseSchema` or null. Throws Undecodable. Pure. */
export function decodeAvro(data, schema) {
  if (isFile(data)) return decodeFile(data);
  if (schema === null) throw new Undecodable("Avro needs a schema. Paste it, or choose its file.");
  const registry = data.length >= 5 && data[0] === 0 ? new DataView(data.buffer, data.byteOffset).getUint32(1) : null;
  const forms = [{ skip: 0, note: "" }];
  if (registry !== null) forms.push({ skip: 5, note: `Its first 5 bytes name the schema ${registry} of a registry.` });
  if (data[0] === 0xc3 && data[1] === 1) forms.unshift({ skip: 10, note: "Its first 10 bytes are the fingerprint of its schema." });
  let failure = null;
  for (const form of forms) {
    try {
      return whole(data.subarray(form.skip), schema, form.note);
    } catch (error) {
      if (!(error instanceof Undecodable)) throw error;
      failure ??= error;
    }
  }
  throw failure;
}

function whole(data, schema, note) {
  const from = new Bytes(data);
  return written((writer) => {
    value(from, writer, schema, 0);
    if (from.left) throw new Undecodable(`It does not fit the schema: ${from.left} bytes follow after the value.`);
    return { note };
  });
}

/** Read an Avro long: 7 bits a byte, the lowest first, and the sign in the lowest bit. */
function long(from) {
  let found = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    const byte = from.byte();
    found |= BigInt(byte & 127) << shift;
    if (byte < 128) return BigInt.asIntN(64, (found >> 1n) ^ -(found & 1n));
  }
  throw new Undecodable("It does not fit the schema: a number has more than 10 bytes.");
}

/** Read a number of bytes or items. */
function length(from, what) {
  const found = long(from);
  if (found < 0n || found > BigInt(from.left)) throw new Undecodable(`It does not fit the schema: ${what} of ${found} bytes at byte ${from.at}.`);
  return Number(found);
}

function value(from, writer, schema, depth) {
  if (depth > 2 * DEPTH_MAX) throw new Limit(`It is nested deeper than ${DEPTH_MAX} levels.`);
  switch (schema.type) {
    case "null": return writer.scalar("null");
    case "boolean": {
      const byte = from.byte();
      if (byte > 1) throw new Undecodable(`It does not fit the schema: a boolean is ${byte}.`);
      return writer.scalar(byte ? "true" : "false");
    }
    case "int": case "long": return writer.scalar(logical(long(from), schema));
    case "float": return writer.scalar(numberText(from.view.getFloat32(from.skip(4), true)));
    case "double": return writer.scalar(numberText(from.view.getFloat64(from.skip(8), true)));
    case "string": return writeText(writer, from.take(length(from, "a text")));
    case "bytes": return bytes(writer, from.take(length(from, "a byte string")), schema);
    case "fixed": return bytes(writer, from.take(schema.size), schema);
    case "enum": return writer.string(chosen(schema.symbols, long(from), "an enum"));
    case "union": return value(from, writer, chosen(schema.of, long(from), "a union"), depth + 1);
    case "record": {
      writer.open(false);
      for (const field of schema.fields) {
        writer.key(field.name);
        value(from, writer, field.of, depth + 1);
      }
      return writer.close();
    }
    default: return blocks(from, writer, schema, depth);
  }
}

function chosen(list, index, what) {
  if (index < 0n || index >= BigInt(list.length)) throw new Undecodable(`It does not fit the schema: the number of ${what} is ${index}.`);
  return list[Number(index)];
}

/** Read an array or a map: blocks with a count each, and one with the count 0 at the end. */
function blocks(from, writer, schema, depth) {
  const isMap = schema.type === "map";
  writer.open(!isMap);
  for (;;) {
    let count = long(from);
    if (count === 0n) break;
    if (count < 0n) { // then the size of the block follows
      count = -count;
      length(from, "a block");
    }
    for (let at = 0n; at < count; at += 1n) {
      if (isMap) writer.key(utf8(from.take(length(from, "a name"))) ?? "(not UTF-8)");
      value(from, writer, schema.of, depth + 1);
    }
  }
  writer.close();
}

function logical(number, { logical: kind }) {
  if (kind === "date") return timeText(number * DAY_S, 1).replace(/T.*Z/, "");
  return kind in UNITS ? timeText(number, UNITS[kind]) : String(number);
}

function bytes(writer, data, { logical: kind, scale = 0 }) {
  if (kind !== "decimal" || !data.length || data.length > 64 || !Number.isInteger(scale) || scale < 0 || scale > 200) return writer.bytes(data);
  let unscaled = 0n;
  for (const byte of data) unscaled = (unscaled << 8n) | BigInt(byte);
  unscaled = BigInt.asIntN(8 * data.length, unscaled);
  const digits = String(unscaled < 0n ? -unscaled : unscaled).padStart(scale + 1, "0");
  const point = digits.length - scale;
  return writer.scalar(`${unscaled < 0n ? "-" : ""}${digits.slice(0, point)}${scale ? `.${digits.slice(point)}` : ""}`);
}

// Container files

export function isFile(data) {
  return FILE_MARK.every((byte, at) => data[at] === byte);
}

function decodeFile(data) {
  const from = new Bytes(data);
  from.skip(FILE_MARK.length);
  const about = header(from);
  const codec = utf8(about.get("avro.codec") ?? new Uint8Array()) || "null";
  if (codec !== "null") throw new Undecodable(`It is an Avro file, compressed by ${codec.slice(0, 20)}. Download it to read it.`);
  let schema;
  try {
    schema = parseSchema(utf8(about.get("avro.schema") ?? new Uint8Array()) ?? "");
  } catch (error) {
    throw new Undecodable(`It is an Avro file. ${error.message}`);
  }
  from.skip(SYNC_BYTES);
  return written((writer) => {
    writer.open(true);
    while (from.left) {
      const count = long(from);
      length(from, "a block");
      for (let at = 0n; at < count; at += 1n) value(from, writer, schema, 0);
      from.skip(SYNC_BYTES);
    }
    writer.close();
    return { note: "It is an Avro file with its own schema." };
  });
}

function header(from) {
  const found = new Map();
  for (;;) {
    let count = long(from);
    if (count === 0n) return found;
    if (count < 0n) {
      count = -count;
      length(from, "a block");
    }
    for (let at = 0n; at < count; at += 1n) {
      const name = utf8(from.take(length(from, "a name")));
      found.set(name, from.take(length(from, "a value")));
    }
  }
}
