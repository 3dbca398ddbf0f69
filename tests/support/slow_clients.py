"""Clients that occupy an HTTP server on this machine: some connect and say nothing, some send a
request byte by byte, some the body of a POST. One that is thrown out comes back: an idle one at
once, another one when it cannot send its next byte.

    slow_clients.py PORT [--idle N] [--slow N] [--posts N]

Prints `ready` when all have been there. Ends when its input closes, with a line of JSON: how many
there were at last, how many were thrown out in all, and the processor time that it took.
"""

import argparse
import json
import resource
import select
import socket
import sys
import time

PAUSE_S = 0.5  # between two bytes of a client
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: "
POST = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


class Clients:
    def __init__(self, port):
        self.port = port
        self.poller = select.epoll()
        self.sockets = {}  # descriptor -> socket and its first bytes
        self.thrown_out = 0

    def add(self, opening):
        client = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        client.setblocking(False)
        client.send(opening)
        self.sockets[client.fileno()] = (client, opening)
        self.poller.register(client.fileno(), select.EPOLLIN)

    def replace(self, descriptor):
        client, opening = self.sockets.pop(descriptor)
        client.close()  # which takes it out of the poller
        self.thrown_out += 1
        self.add(opening)

    def drip(self):
        for descriptor, (client, opening) in list(self.sockets.items()):
            try:
                if opening:
                    client.send(b"x")
            except OSError:
                self.replace(descriptor)

    def listen(self, descriptor):
        try:
            is_there = self.sockets[descriptor][0].recv(65536) != b""
        except OSError:
            is_there = False
        if is_there:
            return
        if self.sockets[descriptor][1]:
            self.poller.unregister(descriptor)
        else:
            self.replace(descriptor)

    def until_input_closes(self):
        self.poller.register(sys.stdin.fileno(), select.EPOLLIN)
        next_drip = time.monotonic()
        while True:
            if time.monotonic() >= next_drip:
                self.drip()
                next_drip = time.monotonic() + PAUSE_S
            for descriptor, _ in self.poller.poll(max(next_drip - time.monotonic(), 0)):
                if descriptor == sys.stdin.fileno():
                    return
                if descriptor in self.sockets:
                    self.listen(descriptor)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    for kind in ("idle", "slow", "posts"):
        parser.add_argument("--" + kind, type=int, default=0)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    clients = Clients(options.port)
    for opening, count in ((b"", options.idle), (REQUEST, options.slow), (POST, options.posts)):
        for _ in range(count):
            clients.add(opening)
    print("ready", flush=True)
    clients.until_input_closes()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"clients": len(clients.sockets), "thrown_out": clients.thrown_out,
                      "cpu_seconds": used.ru_utime + used.ru_stime}), flush=True)


if __name__ == "__main__":
    main()
