"""Followers of events who do not read are dropped, and then others have room.

  streams.py --serve cox_metrics_serve [unittest's arguments]"""
import argparse
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

MOST_FOLLOWERS = 64
PATIENCE_S = 240  # a busy machine is slow; those who do not read have ten seconds
options = None


def follow(address, receive_bytes=None):
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    host, port = address.removeprefix("http://").split(":")
    client.settimeout(PATIENCE_S)
    client.connect((host, int(port)))
    client.sendall(b"GET /status/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


class Deaf(unittest.TestCase):
    def setUp(self):
        self.job = subprocess.Popen([options.serve, "20", "300"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.job.wait)
        self.addCleanup(self.job.stdout.close)
        self.addCleanup(self.job.stdin.close)  # ends it
        self.address = self.job.stdout.readline().strip()

    def follower(self, receive_bytes=None):
        client = follow(self.address, receive_bytes)
        self.addCleanup(client.close)
        return client

    def test_who_never_reads_is_dropped_and_who_reads_is_not(self):
        reader = self.follower()
        reader.settimeout(0.2)
        for _ in range(MOST_FOLLOWERS - 1):
            self.follower(receive_bytes=4096)
        read, end, is_admitted = 0, time.monotonic() + PATIENCE_S, False
        while not is_admitted and time.monotonic() < end:
            try:
                piece = reader.recv(1 << 20)
                self.assertNotEqual(piece, b"", "the one who reads was dropped")
                read += len(piece)
            except TimeoutError:
                pass
            with self.follower() as one_more:
                is_admitted = one_more.recv(12) == b"HTTP/1.1 200"
        self.assertTrue(is_admitted, "nobody was dropped")
        self.assertGreater(read, 0)
        with urllib.request.urlopen(self.address + "/readyz", timeout=PATIENCE_S) as answer:
            self.assertEqual(answer.status, 200)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", required=True)
    options, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
