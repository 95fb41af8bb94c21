"""Sorts kernels by their total time in ncu's CSV: slowest.py CSV NAMES. NAMES gets the first
three."""

import csv
import sys


def main(table, names):
    with open(table, encoding="utf-8") as f:
        rows = csv.DictReader(line for line in f if line.startswith('"'))
        times = {}
        for row in rows:
            if row["Metric Name"] == "gpu__time_duration.sum":
                # Older versions print the parameters too.
                kernel = row["Kernel Name"].split("(")[0].split()[-1]
                times.setdefault(kernel, []).append(float(row["Metric Value"].replace(",", "")))
    order = sorted(times, key=lambda kernel: -sum(times[kernel]))
    for kernel in order:
        took = times[kernel]
        print(f"{kernel:<32}{len(took):>6} launches{sum(took) / 1e6:>10.3f} ms, longest {max(took) / 1e3:.1f} us")
    with open(names, "w", encoding="utf-8") as f:
        f.writelines(kernel + "\n" for kernel in order[:3])


if __name__ == "__main__":
    main(*sys.argv[1:])
