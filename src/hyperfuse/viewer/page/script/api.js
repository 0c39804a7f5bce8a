// Questions to the server. Every mistake comes back as what was got, what was expected and what to do.

export class Complaint extends Error {
  constructor({ got = "something unexpected", expected = "", remedy = "" } = {}, status = 0) {
    super([got, expected && `expected ${expected}`, remedy].filter(Boolean).join("; "));
    Object.assign(this, { got, expected, remedy, status });
  }
}

const gone = () =>
  new Complaint({ got: "The server does not answer", remedy: "start hyperfuse view again and use the URL that it prints" });

async function ask(path, options = {}) {
  let reply;
  try {
    reply = await fetch(path, { credentials: "omit", cache: "no-store", ...options });
  } catch (error) {
    throw error.name === "AbortError" ? error : gone();
  }
  if (!reply.ok) throw new Complaint(await reply.json().catch(() => ({})), reply.status);
  return reply;
}

export const get = async (path, signal) => (await ask(path, { signal })).json();

export const post = async (path, body = {}) =>
  (await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();

export async function picture(path, signal) {
  const reply = await ask(path, { signal });
  const complete = Number(reply.headers.get("x-complete") ?? 1);
  return { bitmap: await createImageBitmap(await reply.blob()), complete };
}

export function upload(file, progress) {
  // fetch cannot tell how much has been sent.
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("PUT", `api/uploads/${encodeURIComponent(file.name)}`);
    request.responseType = "json";
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onload = () =>
      request.status < 300 ? resolve(request.response) : reject(new Complaint(request.response ?? {}, request.status));
    request.onerror = () => reject(gone());
    request.send(file);
  });
}
