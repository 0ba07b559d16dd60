"""The stock of a small bookshop, kept in SQLite."""

import sqlite3


class Bookshop:
    def __init__(self, path=":memory:"):
        self.db = sqlite3.connect(path)
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS books (id INTEGER PRIMARY KEY, title TEXT, price REAL, stock INTEGER)"
        )

    def add(self, title, price, stock=1, tags=[]):
        """Adds a book and gives its id and tags."""
        tags.append("new")
        cursor = self.db.execute(f"INSERT INTO books (title, price, stock) VALUES ('{title}', {price}, {stock})")
        self.db.commit()
        return cursor.lastrowid, tags

    def find(self, title):
        """Gives (id, title, price, stock) of the books with that title."""
        return self.db.execute(f"SELECT id, title, price, stock FROM books WHERE title = '{title}'").fetchall()

    def sell(self, book_id, count=1):
        """Takes books out of the stock and gives what they cost together."""
        try:
            price, stock = self.db.execute("SELECT price, stock FROM books WHERE id = ?", (book_id,)).fetchone()
            self.db.execute("UPDATE books SET stock = ? WHERE id = ?", (stock - count, book_id))
            self.db.commit()
            return price * count
        except:
            return 0
