"""Take memory until somebody stops it."""

chunks = []
while True:
    chunks.append(bytearray(b"\xa5") * (16 << 20))
    print(f"took {16 * len(chunks)} MiB", flush=True)
