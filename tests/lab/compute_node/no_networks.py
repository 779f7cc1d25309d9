"""The API of a Neutron that has nothing: each list is empty."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Nothing(BaseHTTPRequestHandler):
    """Answer a request for a list of what the path names."""

    def do_GET(self) -> None:
        """Answer with none of them."""
        kind = self.path.partition("?")[0].rstrip("/").rpartition("/")[2].removesuffix(".json")
        body = json.dumps({kind.replace("-", "_"): []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    # "" is each address of the network namespace, which has no other network.
    ThreadingHTTPServer(("", 9696), Nothing).serve_forever()
