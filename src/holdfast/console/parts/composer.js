// Where a message is written, with images. It says beforehand what will happen to the message.
import { html, useState } from "../html.js";
import { queuedText } from "../chat_session.js";
import { visible } from "./text.js";

const SUGGESTIONS = ["Call send_invoice with customer 'Ada' and amount 120", "remember that I like tea", "what do you know about me?"];
const IMAGE_LIMIT = 5_000_000;

const readImage = (file) => new Promise((resolve) => {
  const reader = new FileReader();
  reader.onload = () => resolve({ type: "image", source: { type: "base64", media_type: file.type, data: reader.result.split(",")[1] } });
  reader.readAsDataURL(file);
});

// Messages that wait for the run, or for a decision, with what is going to happen to them.
export function Queue({ session, held }) {
  if (!session.queue.length) return null;
  const stands = session.paused || session.error ? "Not sent: the run before it was stopped or failed." : held ? "Waits. It is sent when the call above is decided and its run has ended." : "Waits. It is sent when this run has ended.";
  return html`<section class="queue" aria-label="Messages that wait">
    ${session.queue.map((one) => html`<div class="queued" key=${one.otid}><p class="message user">${visible(queuedText(one))}</p>
      <p class="note" role="status">${stands} <button class="plain" onClick=${() => session.dropQueued(one.otid)}>Remove</button></p></div>`)}
    ${(session.paused || session.error) && html`<button onClick=${() => session.resumeQueue()}>Send ${session.queue.length === 1 ? "it" : "them"} now</button>`}
  </section>`;
}

// `busy` is passed although the session knows it: a component that has state is drawn again only when a property changes.
export function Composer({ session, busy, held, empty }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [refused, setRefused] = useState("");
  const submit = (event) => {
    event?.preventDefault();
    if (!text.trim() && !images.length) return;
    session.say(images.length ? [...(text.trim() ? [{ type: "text", text }] : []), ...images] : text);
    setText("");
    setImages([]);
  };
  const take = async (files) => {
    const pictures = [...files].filter(({ type }) => type.startsWith("image/"));
    const small = pictures.filter(({ size }) => size <= IMAGE_LIMIT);
    setRefused(small.length < pictures.length ? "An image of more than 5 MB was left out." : "");
    const read = await Promise.all(small.map(readImage));
    setImages((before) => [...before, ...read]);
  };
  const pasted = (event) => {
    if (event.clipboardData?.files.length) {
      event.preventDefault();
      take(event.clipboardData.files);
    }
  };
  const hint = held ? "A call waits for your decision. A message that you send now waits until the call is decided and its run has ended."
    : busy ? "A run is active. A message that you send now waits here, and is sent when the run has ended." : "";
  return html`${empty && html`<p class="suggestions"><span class="note">Try</span> ${SUGGESTIONS.map((one) => html`<button class="chip" type="button" onClick=${() => session.say(one)}>${one}</button>`)}</p>`}
    <form class="composer" onSubmit=${submit} onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => { event.preventDefault(); take(event.dataTransfer.files); }}>
      ${images.length > 0 && html`<div class="thumbnails">${images.map(({ source }, place) => html`<span><img alt=${`image ${place + 1} to send`} src=${`data:${source.media_type};base64,${source.data}`} />
        <button type="button" class="icon" aria-label=${`Remove image ${place + 1}`} onClick=${() => setImages(images.filter((_, other) => other !== place))}>✕</button></span>`)}</div>`}
      <textarea rows=${Math.min(8, Math.max(2, text.split("\n").length))} aria-label="Message" aria-describedby="composer-hint" placeholder="Write a message" value=${text} autofocus onPaste=${pasted}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event)}></textarea>
      <div class="tools-row"><label class="button quiet">Image<input type="file" accept="image/*" multiple class="unseen" onChange=${(event) => { take(event.target.files); event.target.value = ""; }} /></label>
        <span class="note grow" id="composer-hint" role="status">${refused || hint}</span>
        ${busy && html`<button class="danger" type="button" onClick=${() => session.stop()}>Stop</button>`}
        <button class="primary" type="submit">Send</button></div>
    </form>`;
}
