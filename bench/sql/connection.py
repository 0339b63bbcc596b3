"""A connection to the server through libpq: statements, and COPY from a file."""
import ctypes

BLOCK = 1 << 18
COMMAND_OK, TUPLES_OK, COPY_IN = 1, 2, 4


def _library():
    library = ctypes.CDLL("libpq.so.5")
    library.PQconnectdb.restype = ctypes.c_void_p
    library.PQexec.restype = ctypes.c_void_p
    library.PQgetResult.restype = ctypes.c_void_p
    for name in ("PQgetvalue", "PQerrorMessage"):
        getattr(library, name).restype = ctypes.c_char_p
    for name in ("PQstatus", "PQerrorMessage", "PQgetResult", "PQfinish"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    for name in ("PQresultStatus", "PQntuples", "PQnfields", "PQclear"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.PQexec.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.PQgetvalue.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    library.PQgetisnull.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    library.PQputCopyData.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.PQputCopyEnd.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    return library


class SqlError(Exception):
    """A statement failed."""


class Connection:
    def __init__(self, dsn):
        self.pq = _library()
        self.handle = self.pq.PQconnectdb(dsn.encode())
        if self.pq.PQstatus(self.handle) != 0:
            raise SqlError(self._message())

    def _message(self):
        return self.pq.PQerrorMessage(self.handle).decode(errors="replace").strip()

    def rows(self, sql):
        """The rows as lists of strings, None for NULL. Several statements are one transaction; the last one's rows count."""
        result = self.pq.PQexec(self.handle, sql.encode())
        try:
            if self.pq.PQresultStatus(result) not in (COMMAND_OK, TUPLES_OK):
                raise SqlError(f"{sql[:200]}: {self._message()}")
            columns = range(self.pq.PQnfields(result))
            return [[None if self.pq.PQgetisnull(result, row, column) else self.pq.PQgetvalue(result, row, column).decode()
                     for column in columns] for row in range(self.pq.PQntuples(result))]
        finally:
            self.pq.PQclear(result)

    def value(self, sql):
        return self.rows(sql)[0][0]

    def copy_in(self, sql, path):
        """Runs COPY ... FROM STDIN with what the file holds."""
        result = self.pq.PQexec(self.handle, sql.encode())
        status = self.pq.PQresultStatus(result)
        self.pq.PQclear(result)
        if status != COPY_IN:
            raise SqlError(f"{sql}: {self._message()}")
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                if self.pq.PQputCopyData(self.handle, block, len(block)) != 1:
                    break  # the result tells why
        self.pq.PQputCopyEnd(self.handle, None)
        failed = False
        while result := self.pq.PQgetResult(self.handle):
            failed |= self.pq.PQresultStatus(result) != COMMAND_OK
            self.pq.PQclear(result)
        if failed:
            raise SqlError(f"{sql}: {self._message()}")

    def close(self):
        if self.handle:
            self.pq.PQfinish(self.handle)
            self.handle = None
