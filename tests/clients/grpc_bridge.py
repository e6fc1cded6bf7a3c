"""A gRPC server that forwards each call to a REST API.

google-cloud-tpu only uses gRPC. The bridge converts each call into the HTTP request that the
method's ``google.api.http`` annotation defines (https://google.aip.dev/127): some fields are in
the path, one is the body, and the rest are query parameters. Answers are parsed strictly into the
client's types, so an unknown field is an error. The bridge runs in the environment of the clients
and forwards their credentials.
"""

import re
from concurrent import futures
from typing import Any

import grpc
import requests
from google.longrunning import operations_pb2
from google.protobuf import json_format

# By name of the gRPC method: the HTTP verb, the path, and the field of the request that is sent as
# the body ("*": all fields that are not in the path).
_RULES: dict[str, tuple[str, str, str]] = {
    "CreateNode": ("POST", "{parent}/nodes", "node"),
    "CreateQueuedResource": ("POST", "{parent}/queuedResources", "queued_resource"),
    "DeleteNode": ("DELETE", "{name}", ""),
    "DeleteQueuedResource": ("DELETE", "{name}", ""),
    "GetGuestAttributes": ("POST", "{name}:getGuestAttributes", "*"),
    "GetNode": ("GET", "{name}", ""),
    "GetQueuedResource": ("GET", "{name}", ""),
    "ListAcceleratorTypes": ("GET", "{parent}/acceleratorTypes", ""),
    "ListNodes": ("GET", "{parent}/nodes", ""),
    "ListQueuedResources": ("GET", "{parent}/queuedResources", ""),
    "ListRuntimeVersions": ("GET", "{parent}/runtimeVersions", ""),
    "ListTensorFlowVersions": ("GET", "{parent}/tensorflowVersions", ""),
    "SimulateMaintenanceEvent": ("POST", "{name}:simulateMaintenanceEvent", "*"),
    "StartNode": ("POST", "{name}:start", "*"),
    "StopNode": ("POST", "{name}:stop", "*"),
    "UpdateNode": ("PATCH", "{node.name}", "node"),
    "GetOperation": ("GET", "{name}", ""),
}


class Bridge(grpc.GenericRpcHandler):
    """A gRPC server for one version of the API; ``types`` is the client package of that version."""

    def __init__(self, endpoint: str, version: str, types: Any, pem: tuple[bytes, bytes]) -> None:
        self._url = f"{endpoint}/{version}"
        self._types = types
        self._session = requests.Session()
        self._session.trust_env = False
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        self.port = self._server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pem]))
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method, or None if ``_RULES`` does not contain the method."""
        name = handler_call_details.method.rpartition("/")[2]
        if name not in _RULES:
            return None
        asked, answered = self._messages(name)

        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            return self._answer(name, request, answered, context)

        return grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=asked.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    def _messages(self, name: str) -> tuple[Any, Any]:
        if name == "GetOperation":
            return operations_pb2.GetOperationRequest, operations_pb2.Operation
        asked = getattr(self._types, f"{name}Request").pb()
        if name.startswith("List") or name == "GetGuestAttributes":
            return asked, getattr(self._types, f"{name}Response").pb()
        if name.startswith("Get"):
            return asked, getattr(self._types, name.removeprefix("Get")).pb()
        return asked, operations_pb2.Operation

    def _answer(self, name: str, request: Any, answered: Any, context: Any) -> Any:
        verb, template, body_field = _RULES[name]
        fields = json_format.MessageToDict(request, preserving_proto_field_name=True)
        path = re.sub(r"\{([\w.]+)\}", lambda found: _path_value(fields, found[1]), template)
        body = None
        if body_field == "*":
            body, fields = fields, {}
        elif body_field:
            body = fields.pop(body_field)
        authorization = dict(context.invocation_metadata()).get("authorization", "")
        answer = self._session.request(
            verb,
            f"{self._url}/{path}",
            params={key: str(value) for key, value in fields.items()},
            json=body,
            headers={"Authorization": authorization},
            timeout=60,
        )
        if not answer.ok:
            error = answer.json()["error"]
            context.abort(getattr(grpc.StatusCode, error["status"]), error["message"])
        return json_format.ParseDict(answer.json(), answered())

    def stop(self) -> None:
        self._server.stop(None)


def _path_value(fields: dict[str, Any], name: str) -> str:
    """Return a field's value for the URL's path; remove the field from ``fields`` unless nested."""
    first, _, inner = name.partition(".")
    return fields[first][inner] if inner else fields.pop(first)
