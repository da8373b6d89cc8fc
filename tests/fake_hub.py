"""A dataset repository of the Hugging Face hub, served over HTTP by this machine."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class FakeHub:
    """The repository `owner/shared` with its files."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.sha = f"{1:040x}"

    def tree(self):
        for path, content in self.files.items():
            oid = hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()
            large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            is_large = path.endswith(".safetensors")
            yield {"type": "file", "path": path, "size": len(content), "oid": oid} | ({"lfs": large} if is_large else {})


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def answer(self, content, status=200, **headers):
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self):
            path = unquote(urlsplit(self.path).path)
            if "/owner/shared" not in path:
                return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            if "/resolve/" in path:
                name = path.split("/resolve/")[1].partition("/")[2]
                content = hub.files[name]
                etag = f'"{hashlib.sha1(content).hexdigest()}"'
                return self.answer(content, ETag=etag, X_Repo_Commit=hub.sha, Accept_Ranges="none")
            if "/tree/" in path:
                return self.answer(list(hub.tree()))
            siblings = [{"rfilename": name} for name in hub.files]
            return self.answer({"id": "owner/shared", "sha": hub.sha, "siblings": siblings, "private": False, "tags": []})

        def do_HEAD(self):
            self.do_GET()

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            parts = urlsplit(self.path)
            if "/preupload/" in parts.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                return self.answer({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
            lines = [json.loads(line) for line in body.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            hub.files |= {file["path"]: base64.b64decode(file["content"]) for file in files}
            url = "http://127.0.0.1/datasets/owner/shared"
            self.answer({"commitUrl": f"{url}/commit/{hub.sha}", "commitOid": hub.sha})

    return Handler


@contextmanager
def serve():
    """A hub with its address."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
