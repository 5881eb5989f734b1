/** Server-sent events of a `fetch`: read only as fast as they are consumed, so that TCP holds back the server. */

import { parseJson } from "./json";

export interface ServerEvent {
  event: string;
  data: any;
}

/** A line that long is not one of ours: results above 5 MiB are downloads. */
const MAX_LINE = 32 * 1024 * 1024;

/** Yield the events of a stream. `beforeRead` may delay reading: this is how a stream is paused. */
export async function* serverEvents(
  stream: ReadableStream<Uint8Array>,
  beforeRead: () => Promise<void> | undefined,
): AsyncGenerator<ServerEvent> {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest: string[] = [];
  let restLength = 0;
  let event = "message";
  let data: string[] = [];
  try {
    for (;;) {
      await beforeRead();
      const { done, value } = await reader.read();
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      const lines = text.split("\n");
      const last = lines.pop() ?? "";
      if (lines.length > 0) {
        lines[0] = rest.join("") + lines[0];
        rest = [];
        restLength = 0;
      }
      rest.push(last);
      restLength += last.length;
      if (restLength > MAX_LINE) throw new Error("The server sent an event of more than 32 MB.");
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (data.length > 0) {
            await beforeRead();
            yield { event, data: parseJson(data.join("\n")) };
          }
          event = "message";
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("event:")) {
          event = line.slice(6).trim();
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
