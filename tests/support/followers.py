"""Clients that follow the events of the status page of a job on this machine: some read all that
comes, some never read. A reader that is dropped comes back.

    followers.py PORT [--read N] [--deaf N]

Prints `ready` when all have asked and the readers have their first piece. Ends when its input
closes, with a line of JSON: the bytes that the readers got, the least number of pieces of any of
them, how many were dropped, and the processor time that it took.
"""

import argparse
import json
import resource
import select
import socket
import sys

ASK = b"GET /status/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
DEAF_BUFFER_BYTES = 4096
PATIENCE_S = 60


class Followers:
    def __init__(self, port):
        self.port = port
        self.poller = select.epoll()
        self.readers = {}  # by descriptor
        self.deaf = []
        self.pieces = {}  # of each reader
        self.bytes = self.dropped = 0

    def ask(self, receive_bytes=None):
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", self.port))
        client.sendall(ASK)
        client.setblocking(False)
        return client

    def add_deaf(self):
        self.deaf.append(self.ask(DEAF_BUFFER_BYTES))

    def add_reader(self):
        client = self.ask()
        self.readers[client.fileno()] = client
        self.pieces[client.fileno()] = 0
        self.poller.register(client.fileno(), select.EPOLLIN)

    def hear(self, descriptor):
        try:
            piece = self.readers[descriptor].recv(1 << 20)
        except OSError:
            piece = b""
        self.bytes += len(piece)
        self.pieces[descriptor] += 1
        if not piece:
            self.readers.pop(descriptor).close()  # which takes it out of the poller
            del self.pieces[descriptor]
            self.dropped += 1
            self.add_reader()

    def listen(self):
        """Hears what comes next. Returns whether the input is still open."""
        for descriptor, _ in self.poller.poll():
            if descriptor == sys.stdin.fileno():
                return False
            if descriptor in self.readers:
                self.hear(descriptor)
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--read", type=int, default=0)
    parser.add_argument("--deaf", type=int, default=0)
    options = parser.parse_args()
    followers = Followers(options.port)
    for _ in range(options.read):
        followers.add_reader()
    for _ in range(options.deaf):
        followers.add_deaf()
    while not all(followers.pieces.values()):
        followers.listen()
    print("ready", flush=True)
    followers.poller.register(sys.stdin.fileno(), select.EPOLLIN)
    while followers.listen():
        pass
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"bytes": followers.bytes, "dropped": followers.dropped,
                      "least_pieces": min(followers.pieces.values(), default=0),
                      "cpu_seconds": used.ru_utime + used.ru_stime}), flush=True)


if __name__ == "__main__":
    main()
