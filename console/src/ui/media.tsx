/** Images, audio, video and documents of a result. Bytes become blobs of known types; nothing of them runs in the page. */

import { type ReactNode, useEffect, useMemo, useState } from "react";

import { Markdown, safeAddress } from "../markdown";
import { bytes, line, textOf, visible } from "../text";
import type { Envelope } from "../types";
import { Button } from "./parts";

export interface Media {
  type: string;
  /** Base64. */
  data?: string;
  text?: string;
  name?: string;
  link?: string;
}

const SHOWN = /^(image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml|x-icon)|audio\/[\w.+-]+|video\/(mp4|webm|ogg)|application\/pdf)$/;

function mediaType(text: unknown): string {
  return textOf(text).split(";")[0]!.trim().toLowerCase();
}

/** The blocks of a result that are more than JSON. */
export function mediaOf(envelope: Envelope): Media[] {
  const { meta, data } = envelope;
  if (meta.source === "mcp" && Array.isArray(meta.content)) return meta.content.slice(0, 200).flatMap(ofBlock);
  if (meta.encoding === "base64" && typeof data === "string") {
    return [{ type: mediaType(meta.contentType) || sniffed(data), data, name: fileName(meta.headers?.["content-disposition"]) }];
  }
  const type = mediaType(meta.contentType);
  if (typeof data === "string" && type === "image/svg+xml") return [{ type, data: base64(data) }];
  if (typeof data === "string" && type === "text/markdown") return [{ type, text: data }];
  return [];
}

function ofBlock(block: any): Media[] {
  if (block?.type === "image" || block?.type === "audio") return [{ type: mediaType(block.mimeType), data: textOf(block.data) }];
  if (block?.type === "resource") {
    const { blob, text, mimeType, uri } = block.resource ?? {};
    const content = blob === undefined || blob === null ? { text: textOf(text) } : { data: textOf(blob) };
    return [{ type: mediaType(mimeType), ...content, name: textOf(uri) }];
  }
  if (block?.type === "resource_link") return [{ type: mediaType(block.mimeType), name: textOf(block.name ?? block.uri), link: textOf(block.uri) }];
  if (block?.type === "text") return [{ type: "text/markdown", text: textOf(block.text) }];
  return [];
}

function sniffed(base64: string): string {
  const starts: [string, string][] = [["iVBORw0KGgo", "image/png"], ["/9j/", "image/jpeg"], ["R0lGOD", "image/gif"], ["UklGR", "image/webp"], ["JVBERi", "application/pdf"]];
  return starts.find(([start]) => base64.startsWith(start))?.[1] ?? "application/octet-stream";
}

function fileName(disposition: unknown): string | undefined {
  return /filename="?([^";]{1,200})/i.exec(textOf(disposition))?.[1];
}

function toBlob(media: Media): Blob | null {
  if (media.data === undefined) return null;
  try {
    const text = atob(media.data.replace(/-/g, "+").replace(/_/g, "/"));
    // A type that is not on the list is a file to keep, never a document to open.
    return new Blob([Uint8Array.from(text, (each) => each.charCodeAt(0))], { type: SHOWN.test(media.type) ? media.type : "application/octet-stream" });
  } catch {
    return null;
  }
}

export function MediaView({ media }: { media: Media }): ReactNode {
  const blob = useMemo(() => toBlob(media), [media]);
  const [address, setAddress] = useState<string | null>(null);
  useEffect(() => {
    if (!blob) return;
    const made = URL.createObjectURL(blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  const label = line(media.name ?? media.type ?? "content", 100);
  if (media.text !== undefined) {
    return <figure className="media">{/markdown|^$/.test(media.type) ? <Markdown text={media.text} /> : <pre tabIndex={0}>{visible(media.text.slice(0, 100_000))}</pre>}</figure>;
  }
  if (media.link !== undefined) {
    const target = safeAddress(media.link);
    return <figure className="media">{target ? <a href={target} target="_blank" rel="noopener noreferrer nofollow">{label}</a> : <code>{line(media.link)}</code>}</figure>;
  }
  if (!blob) return <figure className="media muted">This {label} is not valid base64.</figure>;
  return (
    <figure className="media">
      {address && <Shown type={blob.type} address={address} label={label} />}
      <figcaption>
        <span>{label}</span>
        <span className="muted">{line(media.type, 60)}, {bytes(blob.size)}</span>
        <Button icon="download" kind="quiet" onClick={() => address && save(address, media)}>Save</Button>
      </figcaption>
    </figure>
  );
}

function Shown({ type, address, label }: { type: string; address: string; label: string }): ReactNode {
  if (type.startsWith("image/")) return <img src={address} alt={label} />; // scripts of an SVG do not run in an <img>
  if (type.startsWith("audio/")) return <audio src={address} controls aria-label={label} />;
  if (type.startsWith("video/")) return <video src={address} controls aria-label={label} />;
  if (type === "application/pdf") return <iframe src={address} title={label} />;
  return null;
}

const ENDINGS: Record<string, string> = { "image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "application/pdf": "pdf", "audio/wav": "wav", "audio/mpeg": "mp3" };

function save(address: string, media: Media): void {
  const name = (media.name ?? "").split(/[/\\]/).pop()!.replace(/[^\p{L}\p{N}._ -]/gu, "_").slice(0, 100);
  saveAs(address, name || `result.${ENDINGS[media.type] ?? "bin"}`);
}

export function saveAs(address: string, name: string): void {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}

export function saveText(text: string, name: string, type = "application/json"): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  saveAs(address, name);
  window.setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function base64(text: string): string {
  let binary = "";
  for (const each of new TextEncoder().encode(text)) binary += String.fromCharCode(each);
  return btoa(binary);
}
