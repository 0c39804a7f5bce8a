// Requests to the server. Every error comes back as what was got, what was expected and what to do.

export class RequestError extends Error {
  constructor({ got = "something unexpected", expected = "", remedy = "" } = {}, status = 0) {
    super([got, expected && `expected ${expected}`, remedy].filter(Boolean).join("; "));
    Object.assign(this, { got, expected, remedy, status });
  }
}

const unreachable = () =>
  new RequestError({ got: "The server does not answer", remedy: "start hyperfuse view again and use the URL that it prints" });

async function send(path, options = {}) {
  let reply;
  try {
    reply = await fetch(path, { credentials: "omit", cache: "no-store", ...options });
  } catch (error) {
    throw error.name === "AbortError" ? error : unreachable();
  }
  if (!reply.ok) throw new RequestError(await reply.json().catch(() => ({})), reply.status);
  return reply;
}

export const get = async (path, signal) => (await send(path, { signal })).json();

export const post = async (path, body = {}) =>
  (await send(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();

export async function picture(path, signal) {
  const reply = await send(path, { signal });
  const complete = Number(reply.headers.get("x-complete") ?? 1);
  return { bitmap: await createImageBitmap(await reply.blob()), complete };
}

export function upload(file, progress) {
  // fetch does not report how much has been sent.
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", `api/uploads/${encodeURIComponent(file.name)}`);
    request.responseType = "json";
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onload = () =>
      request.status < 300 ? resolve(request.response) : reject(new RequestError(request.response ?? {}, request.status));
    request.onerror = () => reject(unreachable());
    request.send(file);
  });
}
