"""Revenue by country, the best day and the median of an order file."""

import csv
import statistics
import sys
from collections import defaultdict


def main(path):
    by_country = defaultdict(int)
    by_day = defaultdict(int)
    totals = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            cents = int(row["quantity"]) * int(row["price_cents"])
            by_country[row["country"]] += cents
            by_day[row["day"]] += cents
            totals.append(cents)
    print(f"rows {len(totals)}")
    for country, cents in sorted(by_country.items(), key=lambda kv: (-kv[1], kv[0])):
        print(f"{country} {cents}")
    day, cents = min(by_day.items(), key=lambda kv: (-kv[1], kv[0]))
    print(f"best day {day} {cents}")
    print(f"median {statistics.median_low(totals)}")


main(sys.argv[1])
