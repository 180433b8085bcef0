#!/bin/sh
# The three clients with the most failed requests, and what they asked for.
set -eu
log=$1
awk '$9 >= 400 { print $1 }' "$log" | sort | uniq -c | sort -k1,1nr -k2,2 | head -n 3 |
while read -r count client; do
	worst=$(awk -v c="$client" '$1 == c && $9 >= 400 { print $7 }' "$log" | sort | uniq -c | sort -k1,1nr -k2,2 | awk 'NR == 1 { print $2 }')
	echo "$client $count $worst"
done
