"""Opens a database and runs transactions on it. (interface first; drivers below)"""
