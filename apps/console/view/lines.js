// Download of messages as lines of JSON, the form of `zsq pub --json-lines`.

import { getBlob } from "../base/api.js";
import { saveBlob } from "./body.js";
import { button } from "./parts.js";
import { attempt } from "./toast.js";

const TIMEOUT_MS = 330_000; // the broker ends a download after 300 s
const LAST_BYTES = 4096;

/** Return a button that downloads what `query()` selects. */
export function linesButton(name, query) {
  const title = "Save these messages as lines of JSON, with their whole bodies: at most 10,000 messages and 64 MiB";
  return button("Download lines", () => void attempt((said) => said, () => save(name, query())), { title });
}

/** Save the lines, and return a sentence about the result. */
async function save(name, query) {
  const blob = await getBlob("/api/download", query, TIMEOUT_MS);
  saveBlob(blob, name);
  const cut = await cutIn(blob);
  return cut ? `Downloaded only a part: ${cut.cut}. It continues at offset ${cut.next_offset}.` : "Downloaded.";
}

/** Return the last line of a download if it says that the download is cut, or null. */
async function cutIn(blob) {
  const end = await blob.slice(-LAST_BYTES).text();
  try {
    const found = JSON.parse(end.trimEnd().split("\n").at(-1));
    return typeof found.cut === "string" ? found : null;
  } catch {
    return null; // the end of a long message
  }
}
