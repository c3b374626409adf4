"""What a trial would take, before any of it is spent: shapes, work, memory, disk, and advice. No stage imports it."""
