"""The place of a measurement, for pages of docs/results."""

import os
import re
import subprocess


def output_of(*command):
    done = subprocess.run(command, cwd=os.path.dirname(__file__), capture_output=True, text=True, check=False)
    return done.stdout.strip()


def commit():
    changed = " and changes that were not committed yet" if output_of("git", "status", "--porcelain") else ""
    return output_of("git", "rev-parse", "--short", "HEAD") + changed


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = re.search(r"model name\s*: (.*)", file.read())
    return f"{found[1] if found else 'unknown'}, {os.cpu_count()} cores"


def place():
    return {"commit": commit(), "machine": machine(), "load": f"{os.getloadavg()[0]:.1f}"}
