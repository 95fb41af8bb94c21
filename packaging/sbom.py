"""What is in libllamabi.so, as a CycloneDX 1.6 document: `packaging/sbom.py LIBRARY`.

Crates come from `cargo metadata`: those that tests/generated/third_party.rs lists in
THIRD-PARTY.md. SentencePiece and what it brings along come from the crate that vendors it; the C++
and Rust standard libraries from what the library itself and rustc say.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

PLATFORM = "x86_64-unknown-linux-gnu"
# Parts of SentencePiece's source that are compiled into the library, with their licences.
VENDORED = {"abseil-cpp": "Apache-2.0", "darts-clone": "BSD-3-Clause", "protobuf-lite": "BSD-3-Clause"}


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def component(name, version, licence, purl=None, sha256=None):
    out = {"type": "library", "bom-ref": purl or f"{name}@{version}", "name": name, "version": version}
    out["licenses"] = [{"expression": licence.replace("/", " OR ")}]
    if sha256:
        out["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    if purl:
        out["purl"] = purl
    return out


def linked(metadata):
    """Packages that are reached through normal dependencies other than macros, and their edges.
    What lies in this tree is one with the root."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    is_macro = lambda id: any("proc-macro" in target["kind"] for target in packages[id]["targets"])

    def needs(id):
        for d in nodes[id]["deps"]:
            other = d["pkg"]
            if any(kind["kind"] is None for kind in d["dep_kinds"]) and not is_macro(other):
                yield from [other] if packages[other]["source"] else needs(other)

    edges, queue = {}, [metadata["resolve"]["root"]]
    while queue:
        id = queue.pop()
        if id not in edges:
            edges[id] = sorted(set(needs(id)))
            queue += edges[id]
    return packages, edges


def cxx_library(library):
    """The C++ standard library that is linked into it: that of the compiler that left its
    version."""
    data = pathlib.Path(library).read_bytes()
    if clang := re.search(rb"clang version ([0-9.]+)", data):
        return component("libc++", clang[1].decode(), "Apache-2.0 WITH LLVM-exception")
    gcc = re.search(rb"GCC: \([^)]*\) ([0-9.]+)", data)
    return component("libstdc++", gcc[1].decode(), "GPL-3.0-or-later WITH GCC-exception-3.1")


def main(library):
    metadata = json.loads(said("cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={PLATFORM}"))
    packages, edges = linked(metadata)
    lock = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(open("Cargo.lock", "rb"))["package"]}
    refs, components = {}, []
    for id in sorted(edges, key=lambda id: (packages[id]["name"], packages[id]["version"])):
        name, version = packages[id]["name"], packages[id]["version"]
        refs[id] = f"pkg:cargo/{name}@{version}"
        components.append(component(name, version, packages[id]["license"], refs[id], lock[name, version]))
    dependencies = {refs[id]: [refs[other] for other in others] for id, others in edges.items()}
    root = refs[metadata["resolve"]["root"]]
    own = next(c for c in components if c["bom-ref"] == root)
    components.remove(own)

    [vendors] = [id for id in edges if packages[id]["name"] == "sentencepiece-sys"]
    source = pathlib.Path(packages[vendors]["manifest_path"]).parent / "source"
    version = (source / "VERSION.txt").read_text().strip()
    cxx = cxx_library(library)
    parts = [component(name, f"as in sentencepiece {version}", licence) for name, licence in VENDORED.items()]
    sentencepiece = component("sentencepiece", version, "Apache-2.0", f"pkg:github/google/sentencepiece@v{version}")
    rust = component("rust-std", re.search(r"^release: (.*)$", said("rustc", "-vV"), re.M)[1], "MIT OR Apache-2.0")
    components += [sentencepiece, *parts, cxx, rust]
    dependencies[refs[vendors]] = dependencies[refs[vendors]] + [sentencepiece["bom-ref"]]
    dependencies[sentencepiece["bom-ref"]] = [part["bom-ref"] for part in [*parts, cxx]]
    dependencies[root] = dependencies[root] + [rust["bom-ref"]]

    time = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": own},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(dependencies.items())],
    }
    # The same content has the same number.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document, sort_keys=True))
    print(json.dumps({**document, "serialNumber": f"urn:uuid:{number}"}, indent=1))


main(sys.argv[1])
