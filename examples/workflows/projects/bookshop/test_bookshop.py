import unittest

from bookshop import Bookshop


class BookshopTest(unittest.TestCase):
    def setUp(self):
        self.shop = Bookshop()
        self.addCleanup(self.shop.db.close)

    def test_add_and_find(self):
        book_id, _ = self.shop.add("Dune", 9.5, 3)
        self.assertEqual(self.shop.find("Dune"), [(book_id, "Dune", 9.5, 3)])
        self.assertEqual(self.shop.find("Emma"), [])

    def test_sell(self):
        book_id, _ = self.shop.add("Emma", 8.0, 5)
        self.assertEqual(self.shop.sell(book_id, 2), 16.0)
        self.assertEqual(self.shop.find("Emma")[0][3], 3)


if __name__ == "__main__":
    unittest.main()
