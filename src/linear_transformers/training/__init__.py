"""Lightning's part: any task, trained; nothing here knows which."""
