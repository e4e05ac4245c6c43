// JSON as indented text. Numbers, the order of names, and repeated names stay as they were sent.

import { Undecodable, utf8, written } from "./writer.js";

const JSON_MAX = 2_000_000;
const TOKEN = /[\s]*(?:([{[])|([}\]])|[,:]|("(?:[^"\\]|\\.)*")|([^\s,:{}[\]"]+))/y;
const AFTER_NAME = /\s*:/y;

/** Return {text, note} of bytes that are one JSON value. Throws Undecodable. Pure. */
export function decodeJson(data) {
  const text = utf8(data);
  if (text === null) throw new Undecodable("It is not UTF-8.");
  if (text.length > JSON_MAX) throw new Undecodable(`It has more than ${JSON_MAX} letters.`);
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Undecodable(`It is not JSON: ${error.message}.`);
  }
  return written((writer) => {
    for (let at = 0; ;) {
      TOKEN.lastIndex = at;
      const found = TOKEN.exec(text);
      if (!found) return { note: "" };
      at = TOKEN.lastIndex;
      const [, opening, closing, string, other] = found;
      if (opening) writer.open(opening === "[");
      else if (closing) writer.close();
      else if (other) writer.scalar(other);
      else if (string) {
        AFTER_NAME.lastIndex = at;
        if (AFTER_NAME.test(text)) {
          writer.key(JSON.parse(string));
          at = AFTER_NAME.lastIndex;
        } else writer.scalar(string);
      }
    }
  });
}
