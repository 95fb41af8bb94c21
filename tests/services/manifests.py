"""The manifests of examples/scale-out/k8s say what the service understands: manifests.py DIR
GO_SERVER"""

import glob
import subprocess
import sys

import yaml

objects = {}
for path in glob.glob(f"{sys.argv[1]}/*.yaml"):
    with open(path) as f:
        for one in yaml.safe_load_all(f):
            assert one["apiVersion"] and one["metadata"]["name"], one
            objects[one["kind"]] = one
pod = objects["Deployment"]["spec"]["template"]
container = pod["spec"]["containers"][0]
labels = objects["Deployment"]["spec"]["selector"]["matchLabels"]
assert labels == pod["metadata"]["labels"] == objects["InferencePool"]["spec"]["selector"]["matchLabels"]
port = container["ports"][0]["containerPort"]
assert objects["InferencePool"]["spec"]["targetPorts"] == [{"number": port}]
assert objects["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0]["name"] == objects["InferencePool"]["metadata"]["name"]
arguments = container["args"]
assert all(isinstance(argument, str) for argument in arguments), arguments
flags = {name: arguments[i + 1] for i, name in enumerate(arguments[:-1]) if name.startswith("--")}
assert flags["--port"] == str(port)
assert float(flags["--drain"]) + float(flags["--grace"]) < pod["spec"]["terminationGracePeriodSeconds"]
probe = container["readinessProbe"]
assert float(flags["--drain"]) > probe["periodSeconds"] * probe["failureThreshold"]
assert [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")] == ["/healthz", "/healthz", "/readyz"]
# The flags are the service's: of a checkpoint that is not there it complains, not of them.
said = subprocess.run([sys.argv[2], *arguments], capture_output=True, text=True)
assert said.returncode != 0 and "/models/llama" in said.stderr and "flag provided" not in said.stderr, said
print("manifests:", ", ".join(sorted(objects)))
