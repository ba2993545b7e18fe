"""Fetches torch's analyser of flight recorder files: the pure-Python folder of torch's wheel.

usage: fetch_torch_analyser.py FOLDER

The wheel has 139 MB, of which these files are some kilobytes: they are taken out of it by HTTP ranges. `torch` itself is a
stub, which the analyser needs nothing of. Files that are not those of this version are refused.
"""

import hashlib
import io
import pathlib
import sys
import urllib.request
import zipfile

# torch 2.15.0. Of all its wheels the folder is the same.
WHEEL = (
    "https://files.pythonhosted.org/packages/17/24/7b9b755e8c4dd2395c6a94bab6a4ed8aded1735ff2538bc63cbba8abeddd/"
    "torch-2.15.0-cp312-cp312-macosx_14_0_arm64.whl"
)
PACKAGE = "torch/distributed/flight_recorder/"
EMPTY = hashlib.sha256().hexdigest()
FILES = {
    "__init__.py": EMPTY,
    "fr_trace.py": "c7154d4ab227ac73d6ec5530e0e910f339b62fff403a8b31e237ceb421860a1c",
    "components/__init__.py": EMPTY,
    "components/builder.py": "d2b60c4b1630938c13a02dfef426c0ed014538884989226a9d1b2336fba5dc1e",
    "components/config_manager.py": "3e6890de0fbc02fd5c48433939392d504a0938f239b145549d4feae44d8b5ebc",
    "components/fr_logger.py": "0cb9eb0e85b73e0cb4a015231a9296a3f2c29a2590b89e7d3325a5b2ff59927c",
    "components/loader.py": "e22257a13f0a8b36fe76cbbc995ea2bd01520f615d9d0db88987e72b19758e7f",
    "components/types.py": "8abfc1572d87d99fe763231c153e2a603e37af17c29c11ccaae2ac53eeda809f",
    "components/utils.py": "020552edac114bac7d1c7fb1ef28cc06d7098e5260c3b7f2e1fe1d998a9accfe",
}


class Remote(io.RawIOBase):
    """A file on a server, of which parts are read."""

    def __init__(self, url):
        self.url, self.at = url, 0
        head = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(head, timeout=60) as answer:
            self.size = int(answer.headers["Content-Length"])

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence] + offset
        return self.at

    def readinto(self, into):
        wanted = min(len(into), self.size - self.at)
        if wanted <= 0:
            return 0
        part = {"Range": "bytes=%d-%d" % (self.at, self.at + wanted - 1)}
        with urllib.request.urlopen(urllib.request.Request(self.url, headers=part), timeout=60) as answer:
            if answer.status != 206:
                sys.exit("the server gives no parts of files")
            data = answer.read()
        into[: len(data)] = data
        self.at += len(data)
        return len(data)


def main():
    folder = pathlib.Path(sys.argv[1])
    wheel = zipfile.ZipFile(io.BufferedReader(Remote(WHEEL), 1 << 16))
    found = {}
    for name, expected in FILES.items():
        found[name] = wheel.read(PACKAGE + name)
        digest = hashlib.sha256(found[name]).hexdigest()
        if digest != expected:
            sys.exit("%s has the checksum %s, not %s" % (name, digest, expected))
    for name, data in found.items():
        path = folder / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for stub in ["torch/__init__.py", "torch/distributed/__init__.py"]:
        (folder / stub).write_text("")


if __name__ == "__main__":
    main()
