// Images of a message or of a tool's result. One that is elsewhere is named, not fetched: nothing leaves the origin.
import { html } from "../html.js";
import { visible } from "./text.js";

const SHOWN = /^data:image\/(?:png|jpeg|gif|webp|avif|bmp);base64,/;

export const Images = ({ images }) => images?.length > 0 && html`<div class="images">${images.map(({ src, url }) =>
  src && SHOWN.test(src) ? html`<img alt="image" src=${src} />` : html`<p class="note">An image at ${visible(url ?? "an unknown place")}, which is not loaded.</p>`)}</div>`;
